//! What a key takes, and the longest that one insert takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::{Duration, Instant};

use crate::keys;
use crate::subject::SUBJECTS;

/// The system's allocator, which counts the bytes that are in use.
pub struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: it is the system's allocator, which does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        unsafe { System.dealloc(memory, layout) }
    }
}

pub fn compare() {
    println!("{:18} {:>10} {:>10} {:>16} {:>10}", "", "keys", "bytes/key", "longest insert", "99.999 %");
    for keys in [1_000_000, 10_000_000] {
        for (name, make) in SUBJECTS {
            let before = LIVE.load(Ordering::Relaxed);
            let mut times: Vec<Duration> = Vec::with_capacity(keys as usize);
            let own = times.capacity() * size_of::<Duration>();
            let subject = make();
            let mut key = [keys::name(0)];
            for number in 0..keys {
                keys::write(&mut key[0], number);
                let start = Instant::now();
                subject.decide(&key);
                times.push(start.elapsed());
            }
            let bytes = (LIVE.load(Ordering::Relaxed) - before) as f64 - own as f64;
            times.sort_unstable();
            let [rare, longest] = [times[times.len() - times.len() / 100_000], times[times.len() - 1]];
            println!("{name:18} {keys:>10} {:>10.1} {longest:>16.1?} {rare:>10.1?}", bytes / f64::from(keys));
        }
    }
}
