//! copies
