//! Tokens: their bounds, and which one the next term gets.

/// The largest token: what Lua and JSON readers still hold exactly, 2^53 - 2.
pub(crate) const LONGEST_TOKEN: u64 = (1 << 53) - 2;

/// The token of a new term: larger than the last one's, than every one this instance has seen, and
/// not smaller than the time in microseconds, so that it grows also when the last one was lost.
///
/// None when there is no such token below 2^53 - 1.
pub(crate) fn next_token(last: u64, time_us: u64, floor: u64) -> Option<u64> {
    let token = last.max(floor).checked_add(1)?.max(time_us);
    (token <= LONGEST_TOKEN).then_some(token)
}

/// Reads a token as Redis and Redis clients write it: decimal digits, below 2^53 - 1.
pub(crate) fn parse_token(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|token| digits && *token <= LONGEST_TOKEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_token_is_larger_than_all_that_came_before() {
        let cases = [
            ((0, 1_700, 0), Some(1_700)),
            ((5_000, 1_700, 0), Some(5_001)),
            ((5_000, 1_700, 9_000), Some(9_001)),
            ((1_700, 1_700, 0), Some(1_701)),
            ((LONGEST_TOKEN - 1, 0, 0), Some(LONGEST_TOKEN)),
            ((LONGEST_TOKEN, 0, 0), None),
            ((0, 0, LONGEST_TOKEN), None),
            ((0, LONGEST_TOKEN + 1, 0), None),
            ((u64::MAX, 0, 0), None),
        ];
        for ((last, time, floor), token) in cases {
            assert_eq!(next_token(last, time, floor), token, "last {last} time {time} floor {floor}");
        }
    }

    #[test]
    fn only_digits_within_bounds_are_a_token() {
        let cases = [
            ("1790000000000001", Some(1_790_000_000_000_001)),
            ("9007199254740990", Some(LONGEST_TOKEN)),
            ("9007199254740991", None),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.79e+15", None),
            (" 1", None),
            ("99999999999999999999", None),
        ];
        for (text, token) in cases {
            assert_eq!(parse_token(text), token, "{text:?}");
        }
    }
}
