//! Overrides, applied to a request's charges before they are decided.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::Size;
use crate::charge::Charge;
use crate::limit_spec::{self, LimitSpec};

/// The limits of a request that have another size for its keys.
#[derive(Debug)]
pub(crate) struct Resized(SmallVec<[Arc<LimitSpec>; 1]>);

impl Resized {
    /// Creates the limits of the sizes that `size_of` finds for the charges of overridable limits.
    pub(crate) fn new(charges: &[Charge<'_>], mut size_of: impl FnMut(&Charge<'_>) -> Option<Size>) -> Self {
        let overridable = charges.iter().filter(|charge| charge.spec.is_overridable());
        let resized = overridable.filter_map(|charge| charge.spec.with_override(size_of(charge)?).map(Arc::new));
        Self(resized.collect())
    }

    pub(crate) fn specs(&self) -> &[Arc<LimitSpec>] {
        &self.0
    }

    /// Returns the charges with these limits in place of their own.
    pub(crate) fn charges<'a>(&'a self, charges: &[Charge<'a>]) -> SmallVec<[Charge<'a>; 8]> {
        let resize = |charge: &Charge<'a>| {
            let spec = limit_spec::find(charge.spec.index().into(), &self.0).unwrap_or(charge.spec);
            Charge { spec, ..*charge }
        };
        charges.iter().map(resize).collect()
    }
}

impl From<&[Arc<LimitSpec>]> for Resized {
    fn from(specs: &[Arc<LimitSpec>]) -> Self {
        Self(specs.into())
    }
}
