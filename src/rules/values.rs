//! The values that extractors find in a request.

use smallvec::{SmallVec, smallvec};

use super::extractors::Named;
use crate::key::{Extracted, KeyBuf, KeyError, PendingKey};
use crate::request::RequestHead;

/// The values that the extractors of a tree find in one request. Each extractor runs at most once, and only if its value
/// matters.
pub(super) struct ExtractedValues {
    states: SmallVec<[State; 16]>,
    /// The parts of all values, usually without an allocation.
    bytes: SmallVec<[u8; 256]>,
    pending: Vec<PendingValue>,
    /// The candidates of ambiguous values that are known, by extractor.
    candidates: Vec<(usize, Vec<Box<[u8]>>)>,
    scratch: KeyBuf,
}

#[derive(Clone, Copy)]
enum State {
    NotExtracted,
    /// A range of `bytes`.
    Parts(usize, usize),
    Missing(KeyError),
    Pending,
}

/// A value of an asynchronous extractor.
struct PendingValue {
    extractor: usize,
    /// The parts that are already known.
    known: KeyBuf,
    rest: PendingKey,
}

/// The extractor with this position has not returned yet.
pub(super) struct Pending(pub(super) usize);

impl ExtractedValues {
    pub(super) fn new(extractors: usize) -> Self {
        Self {
            states: smallvec![State::NotExtracted; extractors],
            bytes: SmallVec::new(),
            pending: Vec::new(),
            candidates: Vec::new(),
            scratch: KeyBuf::default(),
        }
    }

    /// Returns the value of an extractor: its parts, each preceded by its length. Runs the extractor if it has not run
    /// yet. Without a head, all extractors must have run.
    pub(super) fn get(
        &mut self,
        extractor: usize,
        extractors: &[Named],
        head: Option<&RequestHead<'_>>,
    ) -> Result<Result<&[u8], KeyError>, Pending> {
        if let (State::NotExtracted, Some(head)) = (self.states[extractor], head) {
            self.extract(extractor, extractors, head);
        }
        match self.states[extractor] {
            State::Parts(from, to) => Ok(Ok(&self.bytes[from..to])),
            State::Missing(missing) => Ok(Err(missing)),
            State::NotExtracted | State::Pending => Err(Pending(extractor)),
        }
    }

    /// Returns the parts of a value that is known.
    pub(super) fn known(&self, extractor: usize) -> &[u8] {
        match self.states[extractor] {
            State::Parts(from, to) => &self.bytes[from..to],
            _ => &[],
        }
    }

    /// Returns the candidates of an ambiguous value, if they are known.
    pub(super) fn candidates(&self, extractor: usize) -> Option<&[Box<[u8]>]> {
        self.candidates.iter().find(|(owner, _)| *owner == extractor).map(|(_, candidates)| &**candidates)
    }

    /// Runs all extractors that have not run yet.
    pub(super) fn extract_all(&mut self, extractors: &[Named], head: &RequestHead<'_>) {
        for extractor in 0..self.states.len() {
            if let State::NotExtracted = self.states[extractor] {
                self.extract(extractor, extractors, head);
            }
        }
    }

    /// Waits for the value of an asynchronous extractor.
    pub(super) async fn wait_for(&mut self, extractor: usize) {
        let Some(position) = self.pending.iter().position(|pending| pending.extractor == extractor) else {
            unreachable!("only a running extractor is waited for");
        };
        let PendingValue { mut known, rest, .. } = self.pending.swap_remove(position);
        match rest.await {
            Ok(rest) => {
                known.append(&rest);
                self.store(extractor, known.as_bytes());
            }
            Err(missing) => self.states[extractor] = State::Missing(missing),
        }
    }

    fn extract(&mut self, extractor: usize, extractors: &[Named], head: &RequestHead<'_>) {
        let mut key = std::mem::take(&mut self.scratch);
        key.clear();
        let named = &extractors[extractor];
        match named.extractor.extract(head, &mut key) {
            Extracted::Done => self.store(extractor, key.as_bytes()),
            Extracted::Missing(missing) => {
                self.states[extractor] = State::Missing(missing);
                if missing == KeyError::Ambiguous {
                    self.candidates.extend(named.candidates(head).map(|candidates| (extractor, candidates)));
                }
            }
            Extracted::Pending(rest) => {
                self.states[extractor] = State::Pending;
                self.pending.push(PendingValue { extractor, known: std::mem::take(&mut key), rest });
            }
        }
        self.scratch = key;
    }

    fn store(&mut self, extractor: usize, parts: &[u8]) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(parts);
        self.states[extractor] = State::Parts(from, self.bytes.len());
    }
}
