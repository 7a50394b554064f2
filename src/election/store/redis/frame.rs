//! Where one reply ends in the bytes that have come so far.
//!
//! The `redis` crate parses a reply from a reader that blocks until it has all of it. Ours must wait
//! with a deadline instead, so the end of the reply is found first and the complete bytes are parsed.

use redis::Value;

/// The longest reply that is read. The longest of ours is an error's text; whatever is longer is not
/// an answer to what was asked.
pub(super) const LONGEST_REPLY: usize = 64 * 1024;

/// The shortest value there is, `_\r\n`: a count of more values than could fit is refused at once.
const SHORTEST_VALUE: usize = 3;

/// The most digits of a length: none within the limit needs more.
const LONGEST_LENGTH: usize = 6;

/// What a server says to whoever speaks no TLS on its port for it.
pub(super) const TLS: &str = "a TLS record, where no TLS is spoken";

const TOO_LONG: &str = "a reply longer than 64 KiB";
const TOO_LARGE: &str = "a length above the limit";

/// The bytes that have come over a connection and are not used yet.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    scanner: Scanner,
}

impl Inbox {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// How many bytes are kept.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next value out; none while it is incomplete. What it depends on is which bytes have come,
    /// not how they were split.
    ///
    /// An error says what came instead of a value. Nothing after it can be made sense of.
    pub(super) fn take(&mut self) -> Result<Option<Value>, &'static str> {
        let Some(length) = self.scanner.scan(&self.bytes)? else { return Ok(None) };
        self.scanner = Scanner::default();
        let value = redis::parse_redis_value(&self.bytes[..length]).map_err(|_| "a malformed reply")?;
        self.bytes.drain(..length);
        Ok(Some(match value {
            Value::Attribute { data, .. } => *data,
            value => value,
        }))
    }
}

/// Finds the end of one RESP2 or RESP3 value, however deep, without recursion.
///
/// It is given all bytes from the value's beginning each time and goes on where it stopped.
#[derive(Debug)]
pub(super) struct Scanner {
    /// Where the next value begins.
    at: usize,
    /// Up to where the line that begins there is known to have no end.
    searched: usize,
    /// How many values are still to come; aggregates add theirs.
    pending: usize,
}

impl Default for Scanner {
    fn default() -> Self {
        Self { at: 0, searched: 0, pending: 1 }
    }
}

impl Scanner {
    /// The length of the value that `bytes` begin with; none while it is incomplete.
    ///
    /// An error says why these bytes begin no value that is read here.
    pub(super) fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        // What has come beyond the limit is not looked at, for it would not be there in smaller reads.
        match self.scan_within(&bytes[..bytes.len().min(LONGEST_REPLY)])? {
            None if bytes.len() > LONGEST_REPLY => Err(TOO_LONG),
            end => Ok(end),
        }
    }

    fn scan_within(&mut self, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        while self.pending > 0 {
            let Some(&kind) = bytes.get(self.at) else { return Ok(None) };
            let aggregate = match kind {
                b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {
                    let Some(line) = self.line(bytes) else { return Ok(None) };
                    self.value_ends(self.at + 1 + line.len() + 2);
                    continue;
                }
                b'$' | b'!' | b'=' => false,
                b'*' | b'~' | b'>' | b'%' | b'|' => true,
                // An alert or a part of a handshake, of TLS.
                0x15 | 0x16 if self.at == 0 => return Err(TLS),
                _ => return Err("a reply of no known type"),
            };
            let Some(line) = self.line(bytes) else {
                // A length that goes on and on is refused as soon as it is too long: its type and the first
                // half of its line end are no digits.
                let begun = bytes.len() - self.at;
                return if begun > LONGEST_LENGTH + 2 { Err(TOO_LARGE) } else { Ok(None) };
            };
            let body = self.at + 1 + line.len() + 2;
            let Some(length) = parse_length(kind, line)? else {
                self.value_ends(body);
                continue;
            };
            if aggregate {
                let values = if matches!(kind, b'%' | b'|') { 2 * length } else { length };
                // An attribute is not a value: the one that it belongs to comes after it.
                self.pending += values + usize::from(kind == b'|');
                if self.pending > LONGEST_REPLY / SHORTEST_VALUE {
                    return Err("a reply of too many values");
                }
                self.value_ends(body);
            } else {
                let end = body + length;
                match bytes.get(end..end + 2) {
                    Some(b"\r\n") => self.value_ends(end + 2),
                    Some(_) => return Err("a string without its end"),
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(self.at))
    }

    /// What stands between the type byte at `at` and the end of its line, if that has come.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let start = self.at + 1;
        let from = self.searched.max(start);
        match bytes[from..].windows(2).position(|pair| pair == b"\r\n") {
            Some(end) => Some(&bytes[start..from + end]),
            None => {
                // The last byte may be the first one of the line's end.
                self.searched = bytes.len().saturating_sub(1);
                None
            }
        }
    }

    fn value_ends(&mut self, at: usize) {
        self.at = at;
        self.pending -= 1;
    }
}

/// The length of a string or the count of an aggregate; none for the two nils of RESP2.
fn parse_length(kind: u8, line: &[u8]) -> Result<Option<usize>, &'static str> {
    if line == b"-1" && matches!(kind, b'$' | b'*') {
        return Ok(None);
    }
    if line.len() > LONGEST_LENGTH {
        return Err(TOO_LARGE);
    }
    if line.is_empty() || !line.iter().all(u8::is_ascii_digit) {
        return Err("a malformed length");
    }
    let digits = std::str::from_utf8(line).ok().and_then(|digits| digits.parse::<usize>().ok());
    digits.filter(|length| *length <= LONGEST_REPLY).map(Some).ok_or(TOO_LARGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One complete value of every type, the empty and nested ones too.
    const VALUES: &[&[u8]] = &[
        b"+OK\r\n",
        b"+\r\n",
        b"-ERR wrong\r\n",
        b":-12\r\n",
        b"_\r\n",
        b",1.5\r\n",
        b"#t\r\n",
        b"(12345678901234567890\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$5\r\na\r\nbc\r\n",
        b"!5\r\nERR x\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n:1\r\n$1\r\nx\r\n",
        b"~1\r\n+a\r\n",
        b"%0\r\n",
        b"%1\r\n+k\r\n*2\r\n:1\r\n:2\r\n",
        b"|1\r\n+k\r\n+v\r\n:7\r\n",
        b"|0\r\n*1\r\n|1\r\n+k\r\n+v\r\n:7\r\n",
        b">2\r\n+message\r\n$1\r\nx\r\n",
        b"*2\r\n*1\r\n*0\r\n%1\r\n+a\r\n$-1\r\n",
    ];

    fn scan(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        Scanner::default().scan(bytes)
    }

    #[test]
    fn every_type_ends_where_it_ends_and_no_prefix_of_it_is_complete() {
        for value in VALUES {
            let shown = String::from_utf8_lossy(value);
            assert_eq!(scan(value), Ok(Some(value.len())), "{shown:?}");
            assert_eq!(scan(&[value, &b"+next\r\n"[..]].concat()), Ok(Some(value.len())), "{shown:?}");
            for end in 0..value.len() {
                assert_eq!(scan(&value[..end]), Ok(None), "{end} bytes of {shown:?}");
            }
            redis::parse_redis_value(value).unwrap_or_else(|e| panic!("{shown:?}: {e}"));
        }
    }

    #[test]
    fn bytes_that_come_one_by_one_end_where_they_end_at_once() {
        for value in VALUES {
            let mut scanner = Scanner::default();
            for end in 0..value.len() {
                assert_eq!(
                    scanner.scan(&value[..end]),
                    Ok(None),
                    "{end} of {:?}",
                    String::from_utf8_lossy(value)
                );
            }
            assert_eq!(scanner.scan(value), Ok(Some(value.len())), "{:?}", String::from_utf8_lossy(value));
        }
    }

    #[test]
    fn what_is_no_reply_is_refused_as_soon_as_it_can_be_told() {
        let hostile: &[&[u8]] = &[
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\0",
            b"\r\n",
            b"$-2\r\n",
            b"$x\r\n",
            b"$\r\n",
            b"$+5\r\n",
            b"$99999999999999999999999",
            // As long as that, though it says 5: it must not depend on where a read ends.
            b"$00000005\r\nabcde\r\n",
            b"$1048576\r\n",
            b"$3\r\nabcde",
            b"!-1\r\n",
            b"=-1\r\n",
            b"*?\r\n",
            b"*-2\r\n",
            b"*999999999999\r\n",
            b"*60000\r\n",
            b"%-1\r\n",
            b"%18446744073709551615\r\n",
            b"%30000\r\n",
            b"~-1\r\n",
            b">-1\r\n",
            b"|-1\r\n",
            b"*1\r\nHTTP",
            // Counts that are small one by one and too many together.
            b"*20000\r\n*20000\r\n*20000\r\n",
        ];
        for bytes in hostile {
            assert!(scan(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn endless_replies_are_refused_at_the_limit() {
        let line = [&b"+"[..], &vec![b'x'; LONGEST_REPLY]].concat();
        assert_eq!(scan(&line[..LONGEST_REPLY]), Ok(None));
        assert_eq!(scan(&line), Err(TOO_LONG));
        let bulk = [&b"$65530\r\n"[..], &vec![b'x'; LONGEST_REPLY]].concat();
        assert!(scan(&bulk).is_err());
        // 100 000 levels deep, and then as deep as the limit lets it be: neither recurses.
        assert_eq!(scan(&b"*1\r\n".repeat(100_000)), Err(TOO_LONG));
        let deep = [b"*1\r\n".repeat(10_000), b":1\r\n".to_vec()].concat();
        assert_eq!(scan(&deep), Ok(Some(deep.len())));
        // The parser refuses such depth by itself, without a stack overflow.
        assert!(redis::parse_redis_value(&deep).is_err());
        let attributes = b"|0\r\n".repeat(100_000);
        assert_eq!(scan(&attributes), Err(TOO_LONG));
    }

    #[test]
    fn any_bytes_at_all_are_scanned_without_a_panic() {
        // Every pair and triple of the bytes that mean something, behind one another.
        let alphabet = b"+-:_,#($!=*~>%|0129?\r\nx";
        for a in alphabet {
            for b in alphabet {
                for c in alphabet {
                    for d in alphabet {
                        let bytes = [*a, *b, *c, *d, b'\r', b'\n', b'x', b'\r', b'\n'];
                        if let Ok(Some(length)) = scan(&bytes) {
                            redis::parse_redis_value(&bytes[..length]).ok();
                        }
                    }
                }
            }
        }
    }
}
