//! lily-cpu (being written).
