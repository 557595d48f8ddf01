//! Page-aligned host memory.
