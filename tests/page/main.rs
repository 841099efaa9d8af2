//! The page of the example server, in Chromium.

mod access;
mod browser;
mod decisions;
mod outages;
mod screenshots;
