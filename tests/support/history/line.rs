//! One line, as far as it matters here.

use serde_json::Value;

use super::events::{Reason, Told, What};

/// What a line is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Line {
    Told(Told),
    Read(Reading),
}

/// A line about a reading, or about the lack of any.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reading {
    Sample { token: Option<u64>, at_us: u64, done_us: u64, prev_us: Option<u64> },
    Gap { leader: bool, prev_us: u64, at_us: u64 },
}

impl Line {
    pub(super) fn parse(line: &Value) -> Result<Self, &'static str> {
        let number = |name: &str| line[name].as_u64();
        let token = || number("token").ok_or("no token");
        let at_us = number("at_us").ok_or("a line without at_us")?;
        let what = match line["event"].as_str().ok_or("a line without event")? {
            "sample" | "gap" => return Reading::parse(line, at_us).map(Self::Read),
            "started" => What::Started,
            "promoted" => What::Promoted { token: token()? },
            "demoted" => What::Demoted {
                token: token()?,
                reason: line["reason"].as_str().and_then(Reason::parse).ok_or("no known reason")?,
                ended_us: number("ended_us").ok_or("no ended_us")?,
            },
            "missed" => What::Missed,
            "stopped" => What::Stopped,
            "leader" | "error" => What::Other,
            _ => return Err("an unknown event"),
        };
        Ok(Self::Told(Told { at_us, what }))
    }
}

impl Reading {
    fn parse(line: &Value, at_us: u64) -> Result<Self, &'static str> {
        let number = |name: &str| line[name].as_u64();
        let leader = line["leader"].as_bool().ok_or("a reading without leader")?;
        let prev_us = number("prev_us");
        if prev_us.is_some_and(|prev_us| prev_us > at_us) {
            return Err("a reading before the one before it");
        }
        if line["event"] == "gap" {
            let prev_us = prev_us.ok_or("a gap without prev_us")?;
            return Ok(Self::Gap { leader, prev_us, at_us });
        }
        let (token, done_us) = (number("token"), number("done_us").ok_or("a sample without done_us")?);
        if leader != token.is_some() {
            return Err("a sample whose leader and token contradict");
        }
        if done_us < at_us {
            return Err("a sample that was done before it began");
        }
        Ok(Self::Sample { token, at_us, done_us, prev_us })
    }

    /// Where it stands among the readings.
    pub(super) fn time(&self) -> u64 {
        match self {
            Self::Sample { at_us, .. } => *at_us,
            Self::Gap { prev_us, .. } => *prev_us,
        }
    }

    pub(super) fn at_us(&self) -> u64 {
        match self {
            Self::Sample { at_us, .. } | Self::Gap { at_us, .. } => *at_us,
        }
    }

    /// When the reading began and was done, and the token under which the process led; None for a gap.
    pub(super) fn sample(&self) -> Option<(u64, u64, Option<u64>)> {
        match *self {
            Self::Sample { at_us, done_us, token, .. } => Some((at_us, done_us, token)),
            Self::Gap { .. } => None,
        }
    }
}
