//! lily-server (being written).
