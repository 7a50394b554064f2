//! What a group is called in Redis, and what an instance is called there.

use std::fmt;
use std::sync::Arc;

use base32::Alphabet::Rfc4648;
use rand::TryRng;
use rand::rngs::SysRng;
use sha1::{Digest, Sha1};

use super::error::Error;

/// A group: its name and the two keys that its lease lives in.
///
/// Both keys hash to one cluster slot, for the braces of the term key enclose the lease key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    name: Arc<str>,
    lease: Arc<str>,
    term: Arc<str>,
}

impl Group {
    /// The group of this name. An empty name is refused: it is most often a setting that was not read.
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        if name.is_empty() {
            return Err(Error::options(
                "the group's name is empty; name the group whose instances elect one leader",
            ));
        }
        let lease = lease_key(name);
        let term = format!("{{{lease}}}:term");
        Ok(Self { name: name.into(), lease: lease.into(), term: term.into() })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The string key whose value is the holder's instance id.
    pub(crate) fn lease(&self) -> &str {
        &self.lease
    }

    /// The hash that records the term: `token`, `holder`, `since`, `ttl`, `attempt`.
    pub(crate) fn term(&self) -> &str {
        &self.term
    }
}

/// `taskrunner:leader:` and the base32 (RFC 4648, no padding needed for 20 bytes) of the name's SHA-1.
fn lease_key(group: &str) -> String {
    let digest = Sha1::digest(group.as_bytes());
    format!("taskrunner:leader:{}", base32::encode(Rfc4648 { padding: false }, &digest))
}

/// The id of one instance: 16 random bytes in base32, after the user's name for it and a slash if
/// there is one.
///
/// Every start of an elector makes its own. It is never equal by accident, so "the holder is this id"
/// is always this very instance.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct InstanceId(Arc<str>);

impl InstanceId {
    /// Draws a new id from the system's random source.
    pub(crate) fn random(name: Option<&str>) -> Result<Self, Error> {
        let mut bytes = [0; 16];
        SysRng.try_fill_bytes(&mut bytes).map_err(|e| {
            Error::spawn("could not draw an instance id from the system's random source", Some(Arc::new(e)))
        })?;
        let id = base32::encode(Rfc4648 { padding: true }, &bytes);
        Ok(Self(match name {
            Some(name) => format!("{name}/{id}").into(),
            None => id.into(),
        }))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for InstanceId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_key_is_the_one_other_implementations_use() {
        for (group, key) in [
            ("example", "taskrunner:leader:YNEZYJZJOMFH7AD67ODHNKJNZNXYUP4P"),
            ("my-app-coordinator", "taskrunner:leader:ECOIULZN7TPW3JFMC3LZ42VJAEOWE6U4"),
            ("grüße", "taskrunner:leader:ZVLMWCWEK2IHGGX62577MZSV37PYK5W2"),
            ("", "taskrunner:leader:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"),
        ] {
            assert_eq!(lease_key(group), key, "group {group:?}");
        }
    }

    #[test]
    fn the_term_key_hashes_to_the_slot_of_the_lease_key() {
        let group = Group::new("example").expect("a good name");
        assert_eq!(group.term(), "{taskrunner:leader:YNEZYJZJOMFH7AD67ODHNKJNZNXYUP4P}:term");
        // What a cluster hashes is what stands between the first brace and the next closing one.
        let tag = group.term().split(['{', '}']).nth(1);
        assert_eq!(tag, Some(group.lease()));
    }

    /// B53: two applications met on one key, or on one channel.
    #[test]
    fn unlike_groups_have_unlike_keys_whatever_is_in_their_names() {
        let long = "a".repeat(10_000);
        let names =
            ["a", "b", "A", "a:b", "a{b}", "{a}b", "a b", " a", "a\n", "a\0", "grüße", "gru\u{308}ße", &long];
        let mut keys: Vec<_> = names.iter().map(|name| Group::new(name).expect("not empty")).collect();
        for key in &keys {
            let (prefix, hash) = key.lease().split_at("taskrunner:leader:".len());
            assert_eq!((prefix, hash.len()), ("taskrunner:leader:", 32));
            assert!(hash.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7')), "{hash}");
        }
        keys.sort_by(|a, b| a.lease().cmp(b.lease()));
        keys.dedup_by(|a, b| a.lease() == b.lease());
        assert_eq!(keys.len(), names.len());
    }

    #[test]
    fn an_empty_group_is_refused() {
        let error = Group::new("").expect_err("an empty name");
        assert!(error.to_string().contains("group's name is empty"), "{error}");
    }

    #[test]
    fn ids_are_random_and_carry_the_given_name() {
        let (one, two) = (InstanceId::random(None), InstanceId::random(None));
        let (one, two) = (one.expect("an id"), two.expect("an id"));
        assert_ne!(one, two);
        assert_eq!((one.as_str().len(), one.as_str().matches('=').count()), (32, 6));
        let named = InstanceId::random(Some("web-1")).expect("an id");
        let (name, random) = named.as_str().split_once('/').expect("a slash after the name");
        assert_eq!((name, random.len()), ("web-1", 32));
    }
}
