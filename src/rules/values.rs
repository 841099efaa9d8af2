//! What extractors have found in a request.

use smallvec::{SmallVec, smallvec};

use super::tree::Tree;
use crate::key::{Extracted, KeyBuf, KeyError, PendingKey};
use crate::request::RequestHead;

/// What the extractors of a tree have found in a request, each asked at most once, and only if it
/// matters.
pub(super) struct Values {
    states: SmallVec<[State; 16]>,
    /// The parts of all values, one behind the other: off the heap, as they are mostly.
    bytes: SmallVec<[u8; 256]>,
    to_come: Vec<ToCome>,
    scratch: KeyBuf,
}

#[derive(Clone, Copy)]
enum State {
    Unasked,
    /// From here to there.
    Parts(usize, usize),
    Missing(KeyError),
    ToCome,
}

/// The parts that an extractor has written, and those that it has yet to write.
struct ToCome {
    extractor: usize,
    so_far: KeyBuf,
    rest: PendingKey,
}

/// The value of this extractor is yet to come.
pub(super) struct HasToWait(pub(super) usize);

impl Values {
    pub(super) fn new(extractors: usize) -> Self {
        Self {
            states: smallvec![State::Unasked; extractors],
            bytes: SmallVec::new(),
            to_come: Vec::new(),
            scratch: KeyBuf::default(),
        }
    }

    /// What an extractor finds, each part behind its length. Without a head, all have been asked.
    pub(super) fn of(
        &mut self,
        extractor: usize,
        tree: &Tree,
        head: Option<&RequestHead<'_>>,
    ) -> Result<Result<&[u8], KeyError>, HasToWait> {
        if let (State::Unasked, Some(head)) = (self.states[extractor], head) {
            self.ask(extractor, tree, head);
        }
        match self.states[extractor] {
            State::Parts(from, to) => Ok(Ok(&self.bytes[from..to])),
            State::Missing(missing) => Ok(Err(missing)),
            State::Unasked | State::ToCome => Err(HasToWait(extractor)),
        }
    }

    /// The parts of a value that is known.
    pub(super) fn known(&self, extractor: usize) -> &[u8] {
        match self.states[extractor] {
            State::Parts(from, to) => &self.bytes[from..to],
            _ => &[],
        }
    }

    /// Asks all that were not asked.
    pub(super) fn take_all(&mut self, tree: &Tree, head: &RequestHead<'_>) {
        for extractor in 0..self.states.len() {
            if let State::Unasked = self.states[extractor] {
                self.ask(extractor, tree, head);
            }
        }
    }

    /// Waits until an extractor has found what it was asked for.
    pub(super) async fn wait_for(&mut self, extractor: usize) {
        let place = self.to_come.iter().position(|to_come| to_come.extractor == extractor);
        let Some(place) = place else {
            unreachable!("whoever has to be waited for was asked");
        };
        let ToCome { mut so_far, rest, .. } = self.to_come.swap_remove(place);
        match rest.await {
            Ok(rest) => {
                so_far.append(&rest);
                self.note(extractor, so_far.as_bytes());
            }
            Err(missing) => self.states[extractor] = State::Missing(missing),
        }
    }

    fn ask(&mut self, extractor: usize, tree: &Tree, head: &RequestHead<'_>) {
        let mut key = std::mem::take(&mut self.scratch);
        key.clear();
        match tree.extractors[extractor].extract(head, &mut key) {
            Extracted::Done => self.note(extractor, key.as_bytes()),
            Extracted::Missing(missing) => self.states[extractor] = State::Missing(missing),
            Extracted::Pending(rest) => {
                self.states[extractor] = State::ToCome;
                self.to_come.push(ToCome { extractor, so_far: std::mem::take(&mut key), rest });
            }
        }
        self.scratch = key;
    }

    fn note(&mut self, extractor: usize, parts: &[u8]) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(parts);
        self.states[extractor] = State::Parts(from, self.bytes.len());
    }
}
