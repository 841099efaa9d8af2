//! Spare capacity of the application, for elastic limits.

/// Reports whether the application has spare capacity, for [`Limit::elastic`](crate::Limit::elastic). Implemented by
/// [`InFlight`](crate::InFlight) and closures `Fn() -> bool`. Called inline for each request; must be fast and must not
/// block.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not report spare capacity",
    label = "expected `SpareCapacity`",
    note = "use `InFlight::below(…)`, or a closure: `move || is_idle.load(Ordering::Relaxed)`"
)]
pub trait SpareCapacity: Send + Sync + 'static {
    /// Returns whether there is spare capacity at present.
    fn is_available(&self) -> bool;
}

impl<F: Fn() -> bool + Send + Sync + 'static> SpareCapacity for F {
    fn is_available(&self) -> bool {
        self()
    }
}
