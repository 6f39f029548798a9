//! lily-text (being written).
