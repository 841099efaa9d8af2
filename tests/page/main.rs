//! The page of the example server, in Chromium.

mod access;
mod browser;
mod decisions;
mod explanations;
mod outages;
mod screenshots;
mod smoothness;
mod story;
