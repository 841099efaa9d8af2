//! Extractors made of extractors: alternatives and tuples.

use super::extractor::{Extracted, KeyError, KeyExtractor};
use super::key_buf::KeyBuf;
use super::key_part::KeyPart;
use super::or::{FIRST, Or, SECOND};
use crate::key::heads::RequestHead;

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
        let before = key.len();
        key.push(FIRST);
        match self.first.extract(head, key) {
            Extracted::Done => Extracted::Done,
            Extracted::Missing(KeyError::Ambiguous) => Extracted::Missing(KeyError::Ambiguous),
            Extracted::Missing(_) => {
                key.truncate(before);
                key.push(SECOND);
                self.second.extract(head, key)
            }
            Extracted::Pending(first) => {
                let parts = key.split_off(before);
                let mut others = KeyBuf::default();
                others.push(SECOND);
                let second = self.second.extract(head, &mut others);
                Extracted::Pending(Box::pin(async move {
                    match complete(parts, Extracted::Pending(first)).await {
                        Ok(key) => Ok(key),
                        Err(KeyError::Ambiguous) => Err(KeyError::Ambiguous),
                        Err(_) => complete(others, second).await,
                    }
                }))
            }
        }
    }

    fn is_async(&self) -> bool {
        self.first.is_async() || self.second.is_async()
    }

    fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
        if self.first.is_async() {
            return vec![KeyPart::looked_up("key")];
        }
        match self.first.extract(head, &mut KeyBuf::default()) {
            Extracted::Missing(error) if error != KeyError::Ambiguous => self.second.describe(head),
            _ => self.first.describe(head),
        }
    }
}

/// Appends the parts that are still pending.
async fn complete(mut parts: KeyBuf, rest: Extracted) -> Result<KeyBuf, KeyError> {
    match rest {
        Extracted::Done => Ok(parts),
        Extracted::Missing(error) => Err(error),
        Extracted::Pending(rest) => {
            parts.append(&rest.await?);
            Ok(parts)
        }
    }
}

/// Appends the key that `next` extracts to the parts that were extracted so far.
fn append_next(so_far: Extracted, head: &RequestHead<'_>, key: &mut KeyBuf, next: &impl KeyExtractor) -> Extracted {
    match so_far {
        Extracted::Done => next.extract(head, key),
        Extracted::Missing(error) => Extracted::Missing(error),
        Extracted::Pending(first) => {
            // The head is not available when the first key is found.
            let mut parts = KeyBuf::default();
            let second = next.extract(head, &mut parts);
            Extracted::Pending(Box::pin(async move {
                let mut key = first.await?;
                key.append(&complete(parts, second).await?);
                Ok(key)
            }))
        }
    }
}

macro_rules! extractor_of_tuple {
    ($first:ident $(, $rest:ident)*) => {
        impl<$first: KeyExtractor $(, $rest: KeyExtractor)*> KeyExtractor for ($first, $($rest,)*) {
            #[allow(non_snake_case)]
            fn extract(&self, head: &RequestHead<'_>, key: &mut KeyBuf) -> Extracted {
                let ($first, $($rest,)*) = self;
                let so_far = $first.extract(head, key);
                $(let so_far = append_next(so_far, head, key, $rest);)*
                so_far
            }

            #[allow(non_snake_case)]
            fn is_async(&self) -> bool {
                let ($first, $($rest,)*) = self;
                $first.is_async() $(|| $rest.is_async())*
            }

            #[allow(non_snake_case)]
            fn describe(&self, head: &RequestHead<'_>) -> Vec<KeyPart> {
                let ($first, $($rest,)*) = self;
                let parts = $first.describe(head).into_iter();
                $(let parts = parts.chain($rest.describe(head));)*
                parts.collect()
            }
        }
    };
}
extractor_of_tuple!(A);
extractor_of_tuple!(A, B);
extractor_of_tuple!(A, B, C);
extractor_of_tuple!(A, B, C, D);
