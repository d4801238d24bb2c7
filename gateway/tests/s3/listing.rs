//! listing
