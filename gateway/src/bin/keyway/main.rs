//! The `keyway` binary.
fn main() {}
