//! A model of buckets, as the guide's page on semantics defines them: the level of a key, and the marks of its charges.

/// The way in which a bucket drains and refunds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Draining {
    Continuous,
    AtIntervals,
    /// Continuously. Only the last place is refunded.
    Queue,
}

/// The size of a bucket. The interval is in µs.
#[derive(Clone, Copy, Debug)]
pub struct BucketModel {
    pub draining: Draining,
    pub capacity: u64,
    pub amount: u64,
    pub interval: u64,
}

/// The level that the last charge of a key has left, in units of 1/`interval` of a token, or in tokens if these drain
/// at intervals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Level {
    units: i128,
    /// The instant of the last charge, or the end of its interval.
    at: i128,
    /// The amount at which it was charged.
    amount: i128,
    pub expires_at: i128,
}

impl BucketModel {
    /// Returns the largest cost that is available.
    pub fn left(&self, level: &Level, now: u64) -> u64 {
        let used = self.units(level, now.into()).div_euclid(self.token())
            + i128::from(self.units(level, now.into()).rem_euclid(self.token()) > 0);
        (i128::from(self.capacity) - used).max(0) as u64
    }

    /// Charges `cost`. The level afterwards is the mark of the charge.
    pub fn charge(&self, level: &mut Level, now: u64, cost: u64) {
        let units = self.units(level, now.into());
        let is_unused = units == 0;
        let at = match self.draining {
            Draining::AtIntervals if is_unused => i128::from(now) + self.interval(),
            Draining::AtIntervals => self.next_refill(level, now.into()),
            Draining::Continuous | Draining::Queue => now.into(),
        };
        self.set(level, units + i128::from(cost) * self.token(), at, self.amount.into());
    }

    /// Refunds `cost` tokens of the charge with this mark: takes them off the level that the last charge has left.
    pub fn refund(&self, level: &mut Level, mark: &Level, now: u64, cost: u64) {
        let now = i128::from(now);
        let (units, cost) = (self.units(level, now), i128::from(cost) * self.token());
        let free_at = |level: &Level| (level.amount, level.units + level.at * level.amount);
        let back = match self.draining {
            Draining::Continuous => cost.min(self.units(mark, now)),
            Draining::AtIntervals if mark.expires_at <= now => 0,
            Draining::AtIntervals => (cost - self.refills(mark, now) * i128::from(self.amount)).max(0),
            Draining::Queue if free_at(level) == free_at(mark) => cost,
            Draining::Queue => 0,
        };
        if back > 0 && units <= back {
            *level = Level { units: 0, ..*level };
        } else if back > 0 {
            self.set(level, level.units - back, level.at, level.amount);
        }
    }

    fn set(&self, level: &mut Level, units: i128, at: i128, amount: i128) {
        let drains = (units + amount - 1) / amount;
        let expires_at = match self.draining {
            Draining::AtIntervals => at + (drains - 1) * self.interval(),
            Draining::Continuous | Draining::Queue => at + drains,
        };
        *level = Level { units, at, amount, expires_at };
    }

    /// Returns the units that have not drained.
    fn units(&self, level: &Level, now: i128) -> i128 {
        let drained = match self.draining {
            _ if level.expires_at <= now => level.units,
            Draining::AtIntervals => self.refills(level, now) * i128::from(self.amount),
            Draining::Continuous | Draining::Queue => (now - level.at) * i128::from(self.amount),
        };
        (level.units - drained).max(0)
    }

    fn refills(&self, level: &Level, now: i128) -> i128 {
        ((now - level.at).div_euclid(self.interval()) + 1).max(0)
    }

    fn next_refill(&self, level: &Level, now: i128) -> i128 {
        level.at + self.refills(level, now) * self.interval()
    }

    fn interval(&self) -> i128 {
        self.interval.into()
    }

    fn token(&self) -> i128 {
        if self.draining == Draining::AtIntervals { 1 } else { self.interval() }
    }
}
