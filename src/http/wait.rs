//! The text of a wait in the message of a rejection.

use super::text::Number;

/// A unit of time, in the singular and the plural, with spaces around it.
type Unit = [&'static str; 2];

const SECOND: Unit = [" second ", " seconds "];
const MINUTE: Unit = [" minute ", " minutes "];
const HOUR: Unit = [" hour ", " hours "];
const DAY: Unit = [" day ", " days "];

/// Formats a number of seconds in its two largest units, such as "7 hours 43 minutes".
pub(super) struct WaitText {
    numbers: [Number; 2],
}

impl WaitText {
    pub(super) fn new() -> Self {
        Self { numbers: [Number::new(), Number::new()] }
    }

    /// Returns the pieces of the text. The wait is rounded up to the smaller of the two units, so that a client that
    /// waits that long never retries too early.
    #[inline]
    pub(super) fn format(&mut self, seconds: u64) -> [&str; 4] {
        let [(many, unit), (few, smaller_unit)] = in_two_units(seconds);
        let [larger, smaller] = &mut self.numbers;
        let unit = unit[usize::from(many != 1)];
        if few == 0 {
            return [larger.format(many), &unit[..unit.len() - 1], "", ""];
        }
        let smaller_unit = smaller_unit[usize::from(few != 1)];
        [larger.format(many), unit, smaller.format(few), &smaller_unit[..smaller_unit.len() - 1]]
    }
}

/// Splits a wait into its two largest units, rounded up to the smaller one.
#[inline]
fn in_two_units(seconds: u64) -> [(u64, Unit); 2] {
    if seconds < 60 {
        return [(seconds, SECOND), (0, SECOND)];
    }
    if seconds < 3_600 {
        return [(seconds / 60, MINUTE), (seconds % 60, SECOND)];
    }
    let minutes = seconds.div_ceil(60);
    if minutes < 1_440 {
        return [(minutes / 60, HOUR), (minutes % 60, MINUTE)];
    }
    let hours = seconds.div_ceil(3_600);
    [(hours / 24, DAY), (hours % 24, HOUR)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_formatted_in_their_two_largest_units_rounded_up() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (2, "2 seconds"),
            (59, "59 seconds"),
            (60, "1 minute"),
            (61, "1 minute 1 second"),
            (119, "1 minute 59 seconds"),
            (120, "2 minutes"),
            (125, "2 minutes 5 seconds"),
            (3_599, "59 minutes 59 seconds"),
            (3_600, "1 hour"),
            (3_601, "1 hour 1 minute"),
            (3_660, "1 hour 1 minute"),
            (3_661, "1 hour 2 minutes"),
            (7_200, "2 hours"),
            (27_779, "7 hours 43 minutes"),
            (27_780, "7 hours 43 minutes"),
            (27_781, "7 hours 44 minutes"),
            (86_340, "23 hours 59 minutes"),
            (86_341, "1 day"),
            (86_400, "1 day"),
            (86_401, "1 day 1 hour"),
            (90_000, "1 day 1 hour"),
            (90_001, "1 day 2 hours"),
            (172_799, "2 days"),
            (273_600, "3 days 4 hours"),
            (366 * 86_400, "366 days"),
            (u64::MAX, "213503982334601 days 8 hours"),
        ] {
            assert_eq!(WaitText::new().format(seconds).concat(), text, "{seconds}");
        }
    }
}
