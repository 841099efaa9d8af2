//! Refunds return what still counts of a charge, and nothing else.

use proptest::prelude::*;
use support::model::{Charged, Model};
use support::rule::{Kind, Rule};
use support::time::MIDNIGHT;
use tower_ratelimit::Receipt;

use crate::bounds::{Admitted, most_within, respects_bound};
use crate::clock::{NOON, Step, cost, moved, steps};
use crate::rule::{buckets, every_rule};
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
    subject: Subject,
    model: Model,
    at: u64,
    held: Vec<(Receipt, Charged)>,
    /// The tokens that a bucket has charged or refunded, and when.
    net: Vec<(u64, i128)>,
}

impl Client {
    fn new(rule: Rule) -> Self {
        let subject = Subject::new(&[rule]);
        subject.set(MIDNIGHT);
        Self { subject, model: Model::new(rule), at: MIDNIGHT, held: Vec::new(), net: Vec::new() }
    }

    fn wait(&mut self, thousandths: u64) {
        let wait = (self.model.rule.span() * u128::from(thousandths)).div_ceil(1_000);
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

        let receipt = self.subject.acquire(cost).into_receipt();
        self.held.push((receipt, self.model.charge(self.at, cost)));
        self.net.push((self.at, cost.into()));
        Ok(())
    }

    fn refund(&mut self, which: prop::sample::Index) -> Result<(), TestCaseError> {
        if self.held.is_empty() {
            return Ok(());
        }
        let (receipt, charged) = self.held.remove(which.index(self.held.len()));
        let (before, left) = (&self.subject.levels()[0], self.model.remaining(self.at.into()));
        let is_last = self.model.charges.iter().rposition(|(_, cost)| *cost > 0) == Some(charged.index);
        let cost = self.model.charges[charged.index].1 as u64;
        self.subject.refund(receipt);
        self.model.refund(&charged, self.at, cost);
        self.net.push((self.at, i128::from(left) - i128::from(self.model.remaining(self.at.into()))));
        let after = &self.subject.levels()[0];

        prop_assert!(after.remaining >= before.remaining, "a refund reduced the remaining tokens");
        prop_assert!(after.reset_after <= before.reset_after, "a refund put off the reset");
        let rule = self.model.rule;
        if matches!(rule, Rule::FixedWindow { .. } | Rule::Calendar { .. }) && after.reset_after > 0 {
            prop_assert_eq!(after.reset_after, before.reset_after, "a window's end moved");
        }
        if matches!(rule, Rule::Bucket { kind: Kind::Queue { .. }, .. }) && !is_last {
            prop_assert_eq!(after, before, "a slot given back from the middle of a queue");
        }
        Ok(())
    }

    /// Checks that the remaining tokens are those of the model, and that no more is charged than the limit allows.
    fn check_remaining(&self) -> Result<(), TestCaseError> {
        let (rule, left) = (self.model.rule, &self.subject.levels()[0]);
        prop_assert_eq!(left.remaining, self.model.remaining(self.at.into()));
        if matches!(rule, Rule::Bucket { .. }) {
            return self.check_net();
        }
        prop_assert_eq!(left.reset_after, self.model.reset_after(self.at.into()));
        let kept = self.model.charges.iter().filter(|(_, cost)| *cost > 0);
        let kept = kept.map(|&(at, cost)| Admitted { at: at as u64, cost: cost as u64, delay: 0 });
        respects_bound(rule, &kept.collect::<Vec<_>>())
    }

    /// In any span that ends with a charge, charges less refunds are at most what the bucket admits.
    fn check_net(&self) -> Result<(), TestCaseError> {
        let (mut sum, mut refunds) = (0, 0);
        for &(at, tokens) in self.net.iter().rev() {
            (sum, refunds) = (sum + tokens, refunds + i128::from(tokens <= 0));
            let most = most_within(self.model.rule, self.at - at).expect("the bound of a bucket") as i128;
            // The model counts refunds in whole tokens.
            prop_assert!(sum <= most + refunds, "{sum} of {most} since {at}: {:?}", self.net);
        }
        Ok(())
    }
}

fn check_refunds(rule: Rule, acts: Vec<Act>) -> Result<(), TestCaseError> {
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
            let most = most_within(rule, really - since).expect("the bound of a bucket") as i128;
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
    #![proptest_config(support::cases(800))]

    #[test]
    fn charges_less_refunds_of_a_bucket_count_real_time(
        rule in buckets(every_rule()),
        steps in steps(20_000),
        refunded in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 40),
    ) {
        real_time_counts(rule, &steps.into_iter().zip(refunded).collect::<Vec<_>>())?;
    }

    #[test]
    fn a_lone_refund_returns_all_that_has_not_drained(
        rule in buckets(every_rule()), thousandths in 0u64..=1_000, wait in -1_000i64..=1_200,
    ) {
        let (subject, at, receipts) = charged(rule, &[(0, thousandths)]);
        subject.set(moved(rule, at, wait));
        receipts.into_iter().for_each(|receipt| subject.refund(receipt));
        prop_assert_eq!(subject.levels(), Subject::new(&[rule]).levels());
    }

    /// A queue returns its last place only, and intervals that have ended are taken off each part of a refund.
    #[test]
    fn ten_refunds_in_any_order_return_all_that_has_not_drained(
        rule in buckets(every_rule()).prop_filter("returns all", |rule| {
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
    fn refunds_are_sound(rule in every_rule(), acts in acts()) {
        check_refunds(rule, acts)?;
    }
}
