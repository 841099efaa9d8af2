//! The keys that are requested: text of 12 bytes, recently written, like the key of a real request.

use std::sync::Arc;

use crate::quota::Quota;

/// How keys are chosen.
#[derive(Clone, Copy)]
pub struct Load {
    /// The name on the command line.
    pub name: &'static str,
    pub title: &'static str,
    pub keys: u32,
    zipf: bool,
}

pub const LOADS: [Load; 4] = [
    Load { name: "1", title: "1", keys: 1, zipf: false },
    Load { name: "10k", title: "10,000", keys: 10_000, zipf: false },
    Load { name: "1M", title: "1 million", keys: 1_000_000, zipf: false },
    Load { name: "1M-zipf", title: "1 million, by Zipf,", keys: 1_000_000, zipf: true },
];

/// The number of keys in a batch.
pub const BATCH: usize = 256;

pub struct Keys {
    batch: Vec<String>,
    load: Load,
    random: u64,
    /// The probability of each of the first keys.
    shares: Vec<f64>,
}

impl Load {
    /// Chooses among as many keys, all equally likely.
    pub fn uniform(title: &'static str, keys: u32) -> Self {
        Self { name: title, title, keys, zipf: false }
    }

    /// Returns a load of as many keys by Zipf.
    pub fn zipf(title: &'static str, keys: u32) -> Self {
        Self { name: title, title, keys, zipf: true }
    }

    /// Returns a quota that allows the whole load.
    pub fn quota(&self) -> Quota {
        if self.keys == 1 { Quota::HOT } else { Quota::PLENTY }
    }
}

impl Keys {
    pub fn new(load: &Load, seed: u64) -> Self {
        let mut sum = 0.0;
        let share = |rank: u32| {
            sum += 1.0 / f64::from(rank + 1);
            sum
        };
        let shares = if load.zipf { (0..load.keys).map(share).collect() } else { Vec::new() };
        let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed);
        Self { batch: vec![name(0); BATCH], load: *load, random, shares }
    }

    pub fn next(&mut self) -> &[String] {
        for index in 0..BATCH {
            let key = self.draw();
            write(&mut self.batch[index], key);
        }
        &self.batch
    }

    fn draw(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let Some(sum) = self.shares.last() else {
            return (((self.random >> 32) * u64::from(self.load.keys)) >> 32) as u32;
        };
        let share = (self.random >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        let rank = self.shares.partition_point(|&upto| upto <= share) as u32;
        // Keys of similar rank should not have similar names.
        (u64::from(rank) * 7_919 % u64::from(self.load.keys)) as u32
    }
}

/// Draws the numbers of many keys.
pub fn draws(load: &Load) -> Arc<[u64]> {
    let mut keys = Keys::new(load, 1);
    (0..1 << 20).map(|_| keys.draw().into()).collect()
}

/// Returns the key with this number.
pub fn name(key: u32) -> String {
    format!("key-{key:08}")
}

/// The same without an allocation.
pub fn write(text: &mut String, mut key: u32) {
    let mut digits = *b"key-00000000";
    for digit in digits[4..].iter_mut().rev() {
        *digit = b'0' + (key % 10) as u8;
        key /= 10;
    }
    text.clear();
    text.push_str(std::str::from_utf8(&digits).expect("ASCII"));
}
