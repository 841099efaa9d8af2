//! Runs subjects in turns of a few milliseconds, so that a change of the machine's speed affects all alike.

/// A subject, and its result in each round.
pub struct Runner<T> {
    pub name: String,
    pub subject: T,
    pub rounds: Vec<f64>,
}

impl<T> Runner<T> {
    pub fn new(name: impl Into<String>, subject: T) -> Self {
        Self { name: name.into(), subject, rounds: Vec::new() }
    }
}

pub fn race<T>(runners: &mut [Runner<T>], rounds: usize, mut measure: impl FnMut(&mut T) -> f64) {
    // The first round warms the caches.
    for runner in &mut *runners {
        measure(&mut runner.subject);
    }
    for _ in 0..rounds {
        for runner in &mut *runners {
            let figure = measure(&mut runner.subject);
            runner.rounds.push(figure);
        }
    }
}

/// Returns the rounds of the subject with this name.
///
/// # Panics
///
/// If there is no such subject.
pub fn rounds<'a, T>(runners: &'a [Runner<T>], name: &str) -> &'a [f64] {
    let runner = runners.iter().find(|runner| runner.name == name);
    &runner.unwrap_or_else(|| panic!("{name} has not run")).rounds
}
