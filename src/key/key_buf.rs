//! A buffer for the parts of a key.

use std::fmt;

use crate::key::hash::{KeyHash, KeyHasher};

/// A key's parts, each prefixed with its length, so that `("a", "bc")` and `("ab", "c")` differ.
///
/// The limiter hashes the buffer and drops it: no store sees the key itself. Keys of up to 127 bytes need no allocation.
#[derive(Clone)]
pub struct KeyBuf {
    inline: [u8; INLINE_CAPACITY],
    inline_len: usize,
    /// The whole key, if it does not fit into `inline`. Then `inline_len` is 0.
    heap: Vec<u8>,
}

const INLINE_CAPACITY: usize = 128;

impl KeyBuf {
    /// Appends a part.
    #[inline]
    pub fn push(&mut self, part: &[u8]) {
        // The common case: the part fits into the inline buffer.
        if let Some([len, free @ ..]) = self.inline.get_mut(self.inline_len..=self.inline_len + part.len())
            && part.len() < usize::from(u8::MAX)
            && self.heap.is_empty()
        {
            *len = part.len() as u8;
            free.copy_from_slice(part);
            self.inline_len += 1 + part.len();
            return;
        }
        // One byte of length for short parts, and 0xFF with eight more for others.
        match u8::try_from(part.len()) {
            Ok(len) if len < u8::MAX => self.extend(&[len]),
            _ => {
                self.extend(&[u8::MAX]);
                self.extend(&(part.len() as u64).to_le_bytes());
            }
        }
        self.extend(part);
    }

    #[inline]
    fn extend(&mut self, bytes: &[u8]) {
        match self.inline.get_mut(self.inline_len..self.inline_len + bytes.len()) {
            Some(free) if self.heap.is_empty() => {
                free.copy_from_slice(bytes);
                self.inline_len += bytes.len();
            }
            _ => self.extend_on_heap(bytes),
        }
    }

    #[cold]
    fn extend_on_heap(&mut self, bytes: &[u8]) {
        self.heap.extend_from_slice(&self.inline[..self.inline_len]);
        self.inline_len = 0;
        self.heap.extend_from_slice(bytes);
    }

    /// Hashes all parts. The hash of a single part is the hash of its bytes, so that callers that have them need no
    /// buffer.
    #[inline]
    pub(crate) fn hash(&self, hasher: &KeyHasher) -> KeyHash {
        let bytes = self.as_bytes();
        match only_part(bytes) {
            Some(part) => hasher.hash(part),
            None => hasher.hash(bytes).of_parts(),
        }
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline[..self.inline_len] } else { &self.heap }
    }

    #[inline]
    #[cfg(feature = "rules")]
    pub(crate) fn clear(&mut self) {
        self.truncate(0);
    }

    pub(crate) fn len(&self) -> usize {
        self.as_bytes().len()
    }

    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.inline_len = self.inline_len.min(len);
        self.heap.truncate(len);
    }

    /// Splits off everything behind the first `len` bytes, which must be at a boundary of parts.
    pub(super) fn split_off(&mut self, len: usize) -> Self {
        let mut parts = Self::default();
        parts.extend(&self.as_bytes()[len..]);
        self.truncate(len);
        parts
    }

    /// Iterates over the parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.as_bytes();
        std::iter::from_fn(move || {
            let (part, others) = first_part(rest)?;
            rest = others;
            Some(part)
        })
    }

    /// Appends all parts of another key.
    pub(crate) fn append(&mut self, parts: &Self) {
        self.append_bytes(parts.as_bytes());
    }

    /// Appends encoded parts of another key.
    pub(crate) fn append_bytes(&mut self, parts: &[u8]) {
        self.extend(parts);
    }
}

/// Splits the first part off the encoded parts `bytes`.
fn first_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = match bytes {
        [u8::MAX, rest @ ..] => rest.split_first_chunk().map(|(len, rest)| (u64::from_le_bytes(*len), rest))?,
        [len, rest @ ..] => (u64::from(*len), rest),
        [] => return None,
    };
    rest.split_at_checked(usize::try_from(len).ok()?)
}

/// Returns the part that `bytes` encode, if they encode exactly one.
#[inline]
pub(crate) fn only_part(bytes: &[u8]) -> Option<&[u8]> {
    let (len, part) = match bytes {
        [u8::MAX, rest @ ..] => rest.split_first_chunk().map(|(len, part)| (u64::from_le_bytes(*len), part))?,
        [len, part @ ..] => (u64::from(*len), part),
        [] => return None,
    };
    (len == part.len() as u64).then_some(part)
}

impl Default for KeyBuf {
    #[inline]
    fn default() -> Self {
        Self { inline: [0; INLINE_CAPACITY], inline_len: 0, heap: Vec::new() }
    }
}

/// Shows the length, but not the key, which may be a credential.
impl fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyBuf({} bytes)", self.len())
    }
}
