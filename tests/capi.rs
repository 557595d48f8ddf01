//! The C interface.
#[test]
fn placeholder() {}
