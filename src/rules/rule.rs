//! A rule at work: whether it is for a request, and whose bucket it then charges.

use std::sync::Arc;

use super::value::Chosen;
use crate::key::{Extracted, KeyBuf, KeyExtractor, Missing, complete};
use crate::request::RequestHead;

/// One descriptor of a path.
pub(super) struct Level {
    pub(super) extractor: Arc<dyn KeyExtractor>,
    pub(super) chosen: Chosen,
    /// Its values have buckets of their own.
    pub(super) is_charged: bool,
}

/// A descriptor and those around it, from the outermost to itself.
pub(super) type Path = [Arc<Level>];

/// The extractor of a limit that a file describes.
#[derive(Clone)]
pub(super) struct Rule(pub(super) Arc<Parts>);

pub(super) struct Parts {
    pub(super) path: Box<Path>,
    /// The paths of the rules in whose presence this one does not apply.
    pub(super) replaced_by: Box<[Arc<Path>]>,
    /// What is charged in place of the path's values.
    pub(super) charged: Option<Box<[Arc<dyn KeyExtractor>]>>,
}

/// What a key is not known of at once.
struct HasToWait;

impl KeyExtractor for Rule {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let before = key.len();
        match self.0.now(head, key) {
            Ok(Ok(())) => Extracted::Done,
            Ok(Err(missing)) => {
                key.truncate(before);
                Extracted::Missing(missing)
            }
            Err(HasToWait) => {
                key.truncate(before);
                self.later(head)
            }
        }
    }
}

impl Level {
    /// What its descriptor has to say of a request for which the extractor has written `found`.
    fn judge(&self, found: Result<&[u8], Missing>) -> Result<(), Missing> {
        match found {
            Ok(parts) if self.chosen.takes(parts) => Ok(()),
            // Without its address, no request has the address that is wanted. It is reported.
            Err(missing) if self.chosen.is_any() || missing == Missing::FromServer => Err(missing),
            _ => Err(Missing::NotApplicable),
        }
    }
}

/// That a rule is not for a request weighs more than that its key is missing.
fn heavier(so_far: Result<(), Missing>, next: Result<(), Missing>) -> Result<(), Missing> {
    match (so_far, next) {
        (_, Err(Missing::NotApplicable)) => next,
        (Ok(()), _) => next,
        (Err(_), _) => so_far,
    }
}

impl Parts {
    fn charges(&self, level: &Level) -> bool {
        level.is_charged && self.charged.is_none()
    }

    fn now(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Result<Result<(), Missing>, HasToWait> {
        let mut met = walk(&self.path, head, key, |level| self.charges(level))?;
        if met == Err(Missing::NotApplicable) {
            return Ok(met);
        }
        for path in &self.replaced_by {
            let mut scratch = KeyBuf::default();
            if walk(path, head, &mut scratch, |_| false)?.is_ok() {
                return Ok(Err(Missing::NotApplicable));
            }
        }
        for extractor in self.charged.iter().flatten() {
            let found = match extractor.extract(head, key) {
                Extracted::Done => Ok(()),
                Extracted::Missing(missing) => Err(missing),
                Extracted::Later(_) => return Err(HasToWait),
            };
            met = heavier(met, found);
        }
        Ok(met)
    }
}

/// Adds what `path` charges to `key`, if the request meets it.
fn walk(
    path: &Path,
    head: &RequestHead<'_>,
    key: &mut KeyBuf,
    is_charged: impl Fn(&Level) -> bool,
) -> Result<Result<(), Missing>, HasToWait> {
    let mut met = Ok(());
    for level in path {
        let before = key.len();
        let found = match level.extractor.extract(head, key) {
            Extracted::Done => Ok(&key.as_bytes()[before..]),
            Extracted::Missing(missing) => Err(missing),
            Extracted::Later(_) => return Err(HasToWait),
        };
        met = heavier(met, level.judge(found));
        if met == Err(Missing::NotApplicable) {
            break;
        }
        if !is_charged(level) {
            key.truncate(before);
        }
    }
    Ok(met)
}

/// What an extractor has written, and what it has yet to write.
type Found = (KeyBuf, Extracted);

fn find(extractor: &Arc<dyn KeyExtractor>, head: &RequestHead<'_>) -> Found {
    let mut key = KeyBuf::default();
    let extracted = extractor.extract(head, &mut key);
    (key, extracted)
}

impl Rule {
    /// The same with futures: all that the head has to say is taken from it at once.
    fn later(&self, head: &RequestHead<'_>) -> Extracted {
        let parts = self.0.clone();
        let of = |path: &Path| -> Vec<Found> { path.iter().map(|level| find(&level.extractor, head)).collect() };
        let own = of(&parts.path);
        let others: Vec<Vec<Found>> = parts.replaced_by.iter().map(|path| of(path)).collect();
        let charged: Vec<Found> = parts.charged.iter().flatten().map(|extractor| find(extractor, head)).collect();
        Extracted::Later(Box::pin(async move {
            let mut key = KeyBuf::default();
            let mut met = settle(&parts.path, own, &mut key, |level| parts.charges(level)).await;
            for (path, found) in parts.replaced_by.iter().zip(others) {
                if settle(path, found, &mut KeyBuf::default(), |_| false).await.is_ok() {
                    return Err(Missing::NotApplicable);
                }
            }
            for (so_far, rest) in charged {
                let found = complete(so_far, rest).await;
                met = heavier(met, found.map(|found| key.append(&found)));
            }
            met.map(|()| key)
        }))
    }
}

async fn settle(
    path: &Path,
    found: Vec<Found>,
    key: &mut KeyBuf,
    is_charged: impl Fn(&Level) -> bool,
) -> Result<(), Missing> {
    let mut met = Ok(());
    for (level, (so_far, rest)) in path.iter().zip(found) {
        let found = complete(so_far, rest).await;
        met = heavier(met, level.judge(found.as_ref().map(KeyBuf::as_bytes).map_err(|missing| *missing)));
        if met == Err(Missing::NotApplicable) {
            break;
        }
        if let Ok(found) = found
            && is_charged(level)
        {
            key.append(&found);
        }
    }
    met
}
