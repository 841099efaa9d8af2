//! All take turns, for a few milliseconds each, so that a change of the machine's pace hits all alike.

/// Who is measured, and what came of it in each round.
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
    // The first touches what is not in the caches yet.
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

/// The rounds of the one of that name.
///
/// # Panics
///
/// When nobody has it.
pub fn rounds<'a, T>(runners: &'a [Runner<T>], name: &str) -> &'a [f64] {
    let runner = runners.iter().find(|runner| runner.name == name);
    &runner.unwrap_or_else(|| panic!("{name} has not run")).rounds
}
