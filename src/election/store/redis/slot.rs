//! The hash slots of Redis Cluster.

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16384;

/// The slot of a key: the CRC of all of it, or of its hash tag where it has one.
pub(super) fn slot(key: &[u8]) -> u16 {
    crc16(hashed(key)) % SLOTS
}

/// What stands between the first opening brace and the next closing one, if that is not nothing; else the key.
fn hashed(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').map(|close| &rest[..close])
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// CRC-16/XMODEM: the polynomial 0x1021, from zero, not reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc: u16, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::key::Group;

    /// The first is the check value that the algorithm's definition gives; the others were asked of a server
    /// by CLUSTER KEYSLOT.
    #[test]
    fn slots_are_those_of_a_server() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, expected) in [
            ("", 0),
            ("foo", 12182),
            ("foo{bar}", 5061),
            ("bar", 5061),
            ("{}bar", 6479),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("foo{bar}{zap}", 5061),
            ("foo{bar", 15278),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key:?}");
        }
    }

    #[test]
    fn both_keys_of_a_group_have_one_slot() {
        for name in ["example", "my-app-coordinator", "grüße", "{a}{b}"] {
            let group = Group::new(name).expect("a good name");
            assert_eq!(slot(group.lease().as_bytes()), slot(group.term().as_bytes()), "{name}");
        }
    }
}
