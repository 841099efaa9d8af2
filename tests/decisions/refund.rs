//! Refunds return what still counts of a charge, and nothing else.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tower_ratelimit::Receipt;

use support::bucket_model::{BucketModel, Draining, Level};

use crate::bounds::{Admitted, respects_bound};
use crate::clock::{NOON, Step, cost, moved, steps};
use crate::oracle::Model;
use crate::rule::{Kind, Rule, any_rule, buckets, small_rule};
use crate::subject::Subject;

/// A step of a client that can refund its charges.
#[derive(Clone, Debug)]
enum Act {
    /// Charges this many thousandths of the capacity, at least one token.
    Acquire(u64),
    /// Refunds one of the charges.
    Refund(prop::sample::Index),
    /// Advances the clock by this many thousandths of the span.
    Wait(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => (0u64..=1_000).prop_map(Act::Acquire),
        4 => any::<prop::sample::Index>().prop_map(Act::Refund),
        3 => prop_oneof![0u64..=300, 0u64..=1_500].prop_map(Act::Wait),
    ];
    prop::collection::vec(act, 1..40)
}

/// A client with its charges that are not refunded.
struct Client {
    rule: Rule,
    subject: Subject,
    at: u64,
    /// Receipts, each with the number of its charge and its mark.
    held: Vec<(Receipt, usize, Level)>,
    kept: BTreeMap<usize, Admitted>,
    /// The level of a bucket.
    level: Level,
    /// The tokens that a bucket has charged or refunded, and when.
    net: Vec<(u64, i128)>,
}

impl Client {
    fn new(rule: Rule) -> Self {
        let at = 1_767_225_600_000_000;
        let subject = Subject::new(&[rule]);
        subject.set(at);
        let (held, kept, net) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { rule, subject, at, held, kept, level: Level::default(), net }
    }

    fn wait(&mut self, thousandths: u64) {
        let wait = (self.rule.span() * u128::from(thousandths)).div_ceil(1_000);
        self.at += u64::try_from(wait.min(1 << 50)).unwrap();
        self.at = self.at.min(1 << 51);
        self.subject.set(self.at);
    }

    fn acquire(&mut self, cost: u64) -> Result<(), TestCaseError> {
        let before = self.subject.levels();
        let decision = self.subject.acquire(cost);
        if !decision.is_allowed() {
            return Ok(());
        }
        // After an immediate refund, the state is as if the charge had never been made.
        self.subject.refund(decision.into_receipt());
        prop_assert_eq!(&self.subject.levels(), &before, "after a refund at once");

        let number = self.kept.last_key_value().map_or(0, |(last, _)| last + 1).max(self.held.len() + self.kept.len());
        let decision = self.subject.acquire(cost);
        self.kept.insert(number, Admitted { at: self.at, cost, delay: decision.delay().as_micros() });
        if let Some(bucket) = model(self.rule) {
            bucket.charge(&mut self.level, self.at, cost);
            self.net.push((self.at, cost.into()));
        }
        self.held.push((decision.into_receipt(), number, self.level));
        Ok(())
    }

    fn refund(&mut self, which: prop::sample::Index) -> Result<(), TestCaseError> {
        if self.held.is_empty() {
            return Ok(());
        }
        let (receipt, number, mark) = self.held.remove(which.index(self.held.len()));
        let before = &self.subject.levels()[0];
        self.subject.refund(receipt);
        let after = &self.subject.levels()[0];

        prop_assert!(after.remaining >= before.remaining, "a refund reduced the remaining tokens");
        prop_assert!(after.remaining <= self.rule.capacity(), "credit banked");
        prop_assert!(after.reset_after <= before.reset_after, "a reset put off");
        if matches!(self.rule, Rule::FixedWindow { .. } | Rule::Calendar { .. }) && after.reset_after > 0 {
            prop_assert_eq!(after.reset_after, before.reset_after, "a window's end moved");
        }
        if let Some(bucket) = model(self.rule) {
            let cost = self.kept.get(&number).map_or(0, |kept| kept.cost);
            let before = bucket.left(&self.level, self.at);
            bucket.refund(&mut self.level, &mark, self.at, cost);
            self.net.push((self.at, i128::from(before) - i128::from(bucket.left(&self.level, self.at))));
        }
        let is_queue = matches!(self.rule, Rule::Bucket { kind: Kind::Queue, .. });
        if is_queue && self.kept.keys().last() != Some(&number) {
            prop_assert_eq!(after, before, "a slot given back from the middle of a queue");
        } else {
            self.kept.remove(&number);
        }
        Ok(())
    }

    /// Checks that the remaining tokens are those of the model of a bucket, or, for algorithms that count charges,
    /// those of a history without the refunded charges.
    fn check_remaining(&self) -> Result<(), TestCaseError> {
        if let Some(bucket) = model(self.rule) {
            prop_assert_eq!(self.subject.levels()[0].remaining, bucket.left(&self.level, self.at));
            return self.check_net();
        }
        let kept: Vec<Admitted> = self.kept.values().copied().collect();
        respects_bound(self.rule, &kept)?;

        let mut model = Model::new(self.rule);
        model.taken = kept.iter().map(|kept| (kept.at.into(), kept.cost.into())).collect();
        let left = &self.subject.levels()[0];
        prop_assert_eq!(left.remaining, model.remaining(self.at.into()));
        prop_assert_eq!(left.reset_after, model.reset_after(self.at.into()));
        Ok(())
    }

    /// In any span that ends with a charge, charges less refunds are at most what the bucket admits.
    fn check_net(&self) -> Result<(), TestCaseError> {
        let (mut sum, mut refunds) = (0, 0);
        for &(at, tokens) in self.net.iter().rev() {
            (sum, refunds) = (sum + tokens, refunds + i128::from(tokens <= 0));
            let most = self.rule.most_within(self.at - at).expect("the bound of a bucket") as i128;
            // The model counts refunds in whole tokens.
            prop_assert!(sum <= most + refunds, "{sum} of {most} since {at}: {:?}", self.net);
        }
        Ok(())
    }
}

/// Returns the model of a bucket.
fn model(rule: Rule) -> Option<BucketModel> {
    let Rule::Bucket { kind, amount, interval, .. } = rule else { return None };
    let draining = match kind {
        Kind::Tokens | Kind::Meter => Draining::Continuous,
        Kind::TokensAtIntervals => Draining::AtIntervals,
        Kind::Queue => Draining::Queue,
    };
    Some(BucketModel { draining, capacity: rule.capacity(), amount: amount.into(), interval })
}

fn refunds_are_sound(rule: Rule, acts: Vec<Act>) -> Result<(), TestCaseError> {
    let mut client = Client::new(rule);
    for act in acts {
        match act {
            Act::Wait(thousandths) => client.wait(thousandths),
            Act::Acquire(thousandths) => client.acquire((rule.capacity() * thousandths / 1_000).max(1))?,
            Act::Refund(which) => client.refund(which)?,
        }
        client.check_remaining()?;
    }
    Ok(())
}

/// Charges a bucket and refunds the charges, with a clock that steps back. In any span of real time, charges less
/// refunds are at most what the bucket admits, and those that are never refunded at most a burst more.
fn real_time_counts(rule: Rule, steps: &[(Step, Option<prop::sample::Index>)]) -> Result<(), TestCaseError> {
    let subject = Subject::new(&[rule]);
    let (mut at, mut really) = (NOON, NOON);
    let mut held = Vec::new();
    // When tokens were charged or returned, and whether the charge is kept.
    let mut net: Vec<(u64, i128, bool)> = Vec::new();
    for ((by, thousandths), refunded) in steps {
        let to = moved(rule, at, *by);
        (at, really) = (to, really + to.saturating_sub(at));
        subject.set(at);
        match refunded.filter(|_| !held.is_empty()) {
            Some(which) => {
                let (receipt, charge): (Receipt, usize) = held.swap_remove(which.index(held.len()));
                let before = subject.remaining();
                subject.refund(receipt);
                let returned = i128::from(subject.remaining()) - i128::from(before);
                prop_assert!((0..=net[charge].1).contains(&returned), "{returned} of {} returned", net[charge].1);
                net[charge].2 = false;
                net.push((really, -returned, false));
            }
            None => {
                let cost = cost(rule, *thousandths);
                let decision = subject.acquire(cost);
                if decision.is_allowed() {
                    held.push((decision.into_receipt(), net.len()));
                    net.push((really, cost.into(), true));
                }
            }
        }
        let (mut sum, mut refunds, mut kept) = (0, 0, 0);
        for &(since, tokens, is_kept) in net.iter().rev() {
            sum += tokens;
            refunds += i128::from(tokens <= 0);
            kept += if is_kept { tokens } else { 0 };
            let most = rule.most_within(really - since).expect("the bound of a bucket") as i128;
            // Refunds are counted in whole tokens.
            prop_assert!(sum <= most + refunds, "{sum} of {most} since {since}: {net:?}");
            let with_burst = most + i128::from(rule.capacity());
            prop_assert!(kept <= with_burst, "{kept} of {with_burst} kept since {since}: {net:?}");
        }
    }
    Ok(())
}

/// Charges a bucket at several instants, and returns it with the receipts.
fn charged(rule: Rule, steps: &[Step]) -> (Subject, u64, Vec<Receipt>) {
    let subject = Subject::new(&[rule]);
    let mut at = NOON;
    let mut receipts = Vec::new();
    for &(by, thousandths) in steps {
        at = moved(rule, at, by);
        let decision = subject.set(at).acquire(cost(rule, thousandths));
        if decision.is_allowed() {
            receipts.push(decision.into_receipt());
        }
    }
    (subject, at, receipts)
}

/// A step of at most a fifth of the span, so that some of ten charges have drained and others have not.
fn short_steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((-100i64..=200, 0u64..=250), count)
}

proptest! {
    #![proptest_config(support::cases(400))]

    #[test]
    fn charges_less_refunds_of_a_bucket_count_real_time(
        rule in buckets(small_rule()),
        steps in steps(20_000),
        refunded in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 40),
    ) {
        real_time_counts(rule, &steps.into_iter().zip(refunded).collect::<Vec<_>>())?;
    }

    #[test]
    fn a_lone_refund_returns_all_that_has_not_drained(
        rule in buckets(any_rule()), thousandths in 0u64..=1_000, wait in -1_000i64..=1_200,
    ) {
        let (subject, at, receipts) = charged(rule, &[(0, thousandths)]);
        subject.set(moved(rule, at, wait));
        receipts.into_iter().for_each(|receipt| subject.refund(receipt));
        prop_assert_eq!(subject.levels(), Subject::new(&[rule]).levels());
    }

    /// A queue returns its last place only, and intervals that have ended are taken off each part of a refund.
    #[test]
    fn ten_refunds_in_any_order_return_all_that_has_not_drained(
        rule in buckets(prop_oneof![small_rule(), any_rule()]).prop_filter("returns all", |rule| {
            matches!(rule, Rule::Bucket { kind: Kind::Tokens | Kind::Meter, .. })
        }),
        steps in short_steps(10),
        wait in -200i64..=1_000,
        order in prop::collection::vec(any::<prop::sample::Index>(), 10),
    ) {
        let (subject, at, mut receipts) = charged(rule, &steps);
        subject.set(moved(rule, at, wait));
        for which in order {
            if !receipts.is_empty() {
                subject.refund(receipts.swap_remove(which.index(receipts.len())));
            }
        }
        prop_assert_eq!(subject.levels(), Subject::new(&[rule]).levels());
    }

    #[test]
    fn refunds_of_small_limits_are_sound(rule in small_rule(), acts in acts()) {
        refunds_are_sound(rule, acts)?;
    }

    #[test]
    fn refunds_of_limits_of_any_size_are_sound(rule in any_rule(), acts in acts()) {
        refunds_are_sound(rule, acts)?;
    }
}
