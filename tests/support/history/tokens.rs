//! Whether tokens grow from term to term, over all processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::History;

/// A token that is not larger than those of all earlier terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenFault {
    pub(crate) token: u64,
    pub(crate) who: String,
    pub(crate) at_us: u64,
    pub(crate) disorder: Disorder,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Disorder {
    /// Another term has the same token.
    Twice { other: String },
    /// A larger one was there before.
    Smaller { than: u64, other: String },
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, who, at_us, disorder } = self;
        match disorder {
            Disorder::Twice { other } => {
                write!(f, "token {token} was given twice, to {other} and to {who}, at {at_us}")
            }
            Disorder::Smaller { than, other } => {
                write!(f, "token {token} of {who} came after token {than} of {other}, at {at_us}")
            }
        }
    }
}

/// A term as it was noticed.
struct Sign<'a> {
    at_us: u64,
    token: u64,
    who: &'a str,
    index: usize,
}

pub(super) fn faults(histories: &[History]) -> Vec<TokenFault> {
    let signs = |of: fn(&History) -> Vec<(u64, u64)>| {
        let mut signs = Vec::new();
        for (index, history) in histories.iter().enumerate() {
            let who = history.name();
            signs.extend(of(history).into_iter().map(|(at_us, token)| Sign { at_us, token, who, index }));
        }
        signs.sort_by_key(|sign| (sign.at_us, sign.token));
        signs
    };
    let promoted = signs(|it| it.promotions.iter().map(|it| (it.at_us, it.token)).collect());
    // Ordered by when they were heard, where the process was awake to hear them, and by what readings prove.
    let heard =
        signs(|it| it.promotions.iter().filter(|it| !it.late).map(|it| (it.at_us, it.token)).collect());
    let read = signs(|it| it.proven.iter().map(|it| (it.bounds().0, it.token)).collect());
    let mut found = Vec::new();
    twice(&promoted, &read, &mut found);
    // One finding for a term, however many signs of it there are.
    let mut told = BTreeSet::new();
    smaller(&heard, &mut told, &mut found);
    smaller(&read, &mut told, &mut found);
    found
}

fn twice(promoted: &[Sign<'_>], read: &[Sign<'_>], found: &mut Vec<TokenFault>) {
    let mut first: BTreeMap<u64, &Sign<'_>> = BTreeMap::new();
    let mut told = BTreeSet::new();
    let both = promoted.iter().map(|sign| (sign, true)).chain(read.iter().map(|sign| (sign, false)));
    for (sign, promotion) in both {
        let other = *first.entry(sign.token).or_insert(sign);
        // A promotion begins a term, so each of them needs its own token; readings of one term are many.
        let again = if promotion { !std::ptr::eq(other, sign) } else { other.index != sign.index };
        if again && told.insert((sign.token, sign.index)) {
            let disorder = Disorder::Twice { other: other.who.to_owned() };
            found.push(TokenFault {
                token: sign.token,
                who: sign.who.to_owned(),
                at_us: sign.at_us,
                disorder,
            });
        }
    }
}

fn smaller(signs: &[Sign<'_>], told: &mut BTreeSet<(u64, usize)>, found: &mut Vec<TokenFault>) {
    let mut largest: Option<&Sign<'_>> = None;
    for sign in signs {
        match largest {
            Some(before) if before.token > sign.token => {
                if told.insert((sign.token, sign.index)) {
                    let disorder = Disorder::Smaller { than: before.token, other: before.who.to_owned() };
                    let who = sign.who.to_owned();
                    found.push(TokenFault { token: sign.token, who, at_us: sign.at_us, disorder });
                }
            }
            _ => largest = Some(sign),
        }
    }
}
