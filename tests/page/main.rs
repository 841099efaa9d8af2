//! The page of the example server.
