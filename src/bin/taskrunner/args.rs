//! What can be written on the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use taskrunner::election::{RedisStore, RenewError, Tls};

use crate::lines::Format;

#[cfg(test)]
mod properties;

/// Leader election on Redis: of all instances of a group, one leads
#[derive(Parser)]
#[command(name = "taskrunner", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show an election among three candidates in this process: a crash, a clean stop, and who leads then
    ///
    /// It takes about ten seconds and needs no server: the candidates share a store in this process's memory.
    Demo,

    /// Contend for the leadership of a group, as one candidate, and tell what happens
    ///
    /// Contends until it is stopped by SIGTERM or SIGINT (Ctrl-C), which release the lease: a candidate that
    /// follows leads about a round trip later. A second signal ends the process without that; then the lease
    /// ends by itself, as after a crash.
    #[command(after_long_help = CAMPAIGN_NOTES)]
    Campaign(Campaign),

    /// Say who leads a group
    #[command(after_long_help = STATUS_NOTES)]
    Status(Status),
}

const CAMPAIGN_NOTES: &str = "\
Exit status:
  0  stopped by a signal
  1  it failed while it ran, the lease could not be released at its end (it then ends by itself), or standard
     output was closed
  2  an option, the URL or the timing was refused; nothing was started

The library's log goes to standard error; set RUST_LOG (for example to taskrunner=debug) to see more of it.";

const STATUS_NOTES: &str = "\
The holder is whoever has the lease, as Redis says. It has no token if it is an instance of the Go version.

Exit status:
  0  Redis has answered, also if nobody leads
  1  Redis did not answer within 2 s, or refused to; or standard output was closed
  2  an option or the URL was refused";

const REDIS_HELP: &str = "\
The Redis server, cluster or Sentinels:
  redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]
  unix:///PATH, a socket
  redis-cluster://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]]..., some nodes of a cluster
  redis-sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]].../NAME[/DATABASE], the Sentinels of a primary; user
  and password are the servers'

With rediss in the place of redis they are URLs for TLS.

A command line can be read by every user of the machine; a URL with a password better stands in REDIS_URL.";

// There is no `Debug` on what holds the URL: there may be a password in it.
/// Which election, on which Redis.
#[derive(clap::Args)]
pub(crate) struct Target {
    /// The group
    #[arg(long, value_name = "NAME")]
    pub(crate) group: String,

    // The URL has no value parser, for clap shows the value that a parser refuses.
    /// The Redis server
    #[arg(
        long,
        value_name = "URL",
        long_help = REDIS_HELP,
        env = "REDIS_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1:6379"
    )]
    pub(crate) redis: String,

    #[command(flatten)]
    pub(crate) tls: TlsFiles,
}

/// What a connection with TLS needs besides its URL.
#[derive(clap::Args)]
pub(crate) struct TlsFiles {
    /// Trust the certificate authorities in this PEM file, and not those of the system; turns TLS on
    #[arg(long = "tls-ca", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// Show the server the certificate in this PEM file; turns TLS on
    #[arg(long = "tls-cert", value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// The private key of that certificate, a PEM file
    #[arg(long = "tls-key", value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
}

impl Target {
    /// The store that these options name; or what is wrong with them, in one line.
    pub(crate) fn store(&self) -> Result<RedisStore, String> {
        let store = RedisStore::open(&self.redis).map_err(|error| error.to_chain())?;
        let TlsFiles { ca, cert, key } = &self.tls;
        if ca.is_none() && cert.is_none() {
            return Ok(store);
        }
        let mut tls = Tls::default();
        if let Some(ca) = ca {
            tls = tls.with_ca(read("--tls-ca", ca)?).map_err(|error| error.to_chain())?;
        }
        if let (Some(cert), Some(key)) = (cert, key) {
            let (cert, key) = (read("--tls-cert", cert)?, read("--tls-key", key)?);
            tls = tls.with_client_certificate(cert, key).map_err(|error| error.to_chain())?;
        }
        Ok(store.with_tls(tls))
    }
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{option}: {} cannot be read: {error}", path.display()))
}

#[derive(clap::Args)]
pub(crate) struct Campaign {
    #[command(flatten)]
    pub(crate) target: Target,

    /// How long the lease lasts without renewal: about the longest time without a leader after a crash
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) ttl: Duration,

    /// The longest time between two attempts of a follower
    ///
    /// A follower also tries right at the lease's end, and at once after a release. After a demotion on an
    /// error an instance does not contend for so long.
    #[arg(long, value_name = "DURATION", default_value = "6s", value_parser = duration)]
    pub(crate) wait: Duration,

    /// Up to how much later than planned attempts and renewals come
    #[arg(long, value_name = "DURATION", default_value = "5ms", value_parser = duration)]
    pub(crate) jitter: Duration,

    /// How long before the lease's end the leader stops claiming it [default: a twentieth of the ttl]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) stop_margin: Option<Duration>,

    /// What the leader does when a renewal fails
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = OnRenewError::Demote)]
    pub(crate) on_renew_error: OnRenewError,

    /// Let no lease that Redis loses have a second leader, given how many replicas its primary has
    ///
    /// A win or a renewal then counts once half of them, rounded up, have acknowledged it, and on another data set
    /// than before the lease is parked for the longest ttl of the group first. All candidates of the group
    /// must say the same.
    #[arg(long, value_name = "REPLICAS")]
    pub(crate) strict: Option<u32>,

    /// With --strict, the longest ttl of any candidate of the group [default: the ttl]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "strict")]
    pub(crate) longest_ttl: Option<Duration>,

    /// A name for this instance, shown before its random id
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) id: Option<String>,

    /// Also read every DURATION whether this instance leads, and print the readings
    ///
    /// Printed are the first reading, each change, one at least every 100 ms, and what was last read
    /// before a hole in the readings.
    #[arg(long, value_name = "DURATION", value_parser = sample_period)]
    pub(crate) sample: Option<Duration>,

    /// While leading, write the token to this Unix datagram socket every few milliseconds
    ///
    /// For trials of fencing: each write is one decimal line, and goes out a moment after a check that the term
    /// stands. A socket that cannot be written to is tried again until the term ends.
    #[arg(long, value_name = "PATH")]
    pub(crate) write_token: Option<PathBuf>,

    /// How the lines are written
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(clap::Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) target: Target,

    /// How the answer is written
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnRenewError {
    /// Lead no more at once, release the lease as soon as Redis answers, and contend again after the wait
    Demote,
    /// Stay the leader, and try again until the deadline of the last good renewal
    Retry,
}

impl From<OnRenewError> for RenewError {
    fn from(policy: OnRenewError) -> Self {
        match policy {
            OnRenewError::Demote => Self::Demote,
            OnRenewError::Retry => Self::Retry,
        }
    }
}

/// What clap has against the arguments, in one line and without a password.
pub(crate) fn complaint(error: &clap::Error) -> String {
    let rendered = error.render().to_string();
    let said = rendered
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty());
    let mut line = String::new();
    for part in said {
        if !line.is_empty() {
            line.push_str(if part.starts_with("tip:") { "; " } else { " " });
        }
        line.push_str(part);
    }
    without_password(line.strip_prefix("error: ").unwrap_or(&line))
}

/// Masks all that follows what looks like the beginning of a URL or of a password: a URL in the wrong
/// place is shown like any other bad argument. Too much may go, for a password can hold any character.
fn without_password(line: &str) -> String {
    let ends = [":/", "pass="].iter().filter_map(|mark| Some(line.find(mark)? + mark.len()));
    match ends.min() {
        Some(end) => format!("{}***", &line[..end]),
        None => line.to_owned(),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; a duration is written like 5s or 250ms"))
}

/// Below this a core would do nothing but read the clock.
const SHORTEST_SAMPLE: Duration = Duration::from_micros(100);
const LONGEST_SAMPLE: Duration = Duration::from_secs(24 * 60 * 60);

fn sample_period(text: &str) -> Result<Duration, String> {
    let period = duration(text)?;
    if period < SHORTEST_SAMPLE || period > LONGEST_SAMPLE {
        return Err(format!("must be from {SHORTEST_SAMPLE:?} to one day ({LONGEST_SAMPLE:?})"));
    }
    Ok(period)
}

/// The name goes into lines and into Redis, where others read it on their terminals.
fn name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a name must not be empty".to_owned());
    }
    if text.chars().any(char::is_control) {
        return Err("a name must not have control characters in it".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &[&str]) -> Result<Campaign, String> {
        let line = ["taskrunner", "campaign"].iter().chain(line);
        match Args::try_parse_from(line) {
            Ok(Args { command: Command::Campaign(options) }) => Ok(options),
            Ok(_) => panic!("another command"),
            Err(error) => Err(complaint(&error)),
        }
    }

    fn refused(line: &[&str]) -> String {
        parse(line).err().expect("refused")
    }

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_group_alone_gets_the_defaults() {
        let options = parse(&["--group", "g"]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(options.target.group, "g");
        assert_eq!(options.ttl, Duration::from_secs(5));
        assert_eq!(options.wait, Duration::from_secs(6));
        assert_eq!(options.jitter, Duration::from_millis(5));
        assert_eq!((options.stop_margin, options.sample, options.id), (None, None, None));
        assert_eq!((options.strict, options.longest_ttl), (None, None));
        assert_eq!(options.write_token, None);
        assert_eq!(options.on_renew_error, OnRenewError::Demote);
        assert_eq!(options.format, Format::Text);
    }

    #[test]
    fn every_option_is_read() {
        let line = "--group g --redis redis://h:1/2 --ttl 1s --wait 2s --jitter 0ms --id web-1 \
                    --on-renew-error retry --stop-margin 100ms --strict 2 --longest-ttl 9s --sample 500us --write-token /run/r --format json \
                    --tls-ca ca.pem --tls-cert me.pem --tls-key me.key";
        let line: Vec<&str> = line.split_whitespace().collect();
        let options = parse(&line).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(options.target.redis, "redis://h:1/2");
        assert_eq!(options.ttl, Duration::from_secs(1));
        assert_eq!(options.wait, Duration::from_secs(2));
        assert_eq!(options.jitter, Duration::ZERO);
        assert_eq!(options.stop_margin, Some(Duration::from_millis(100)));
        assert_eq!((options.strict, options.longest_ttl), (Some(2), Some(Duration::from_secs(9))));
        assert_eq!(options.sample, Some(Duration::from_micros(500)));
        assert_eq!(options.write_token, Some(PathBuf::from("/run/r")));
        assert_eq!(options.id.as_deref(), Some("web-1"));
        assert_eq!(options.on_renew_error, OnRenewError::Retry);
        assert_eq!(options.format, Format::Json);
        let TlsFiles { ca, cert, key } = options.target.tls;
        assert_eq!([ca, cert, key], ["ca.pem", "me.pem", "me.key"].map(|file| Some(PathBuf::from(file))));
    }

    #[test]
    fn a_file_of_tls_that_is_missing_or_none_of_its_kind_is_refused_by_its_option() {
        let refused = |line: &[&str]| {
            let options =
                parse(&[&["--group", "g"], line].concat()).unwrap_or_else(|error| panic!("{error}"));
            options.target.store().expect_err("refused")
        };
        let message = refused(&["--tls-ca", "/nowhere/ca.pem"]);
        assert!(message.contains("--tls-ca: /nowhere/ca.pem"), "{message}");
        let message = refused(&["--tls-ca", "/dev/null"]);
        assert!(message.contains("certificate authority"), "{message}");
        let message = refused(&["--tls-cert", "/dev/null", "--tls-key", "/dev/null"]);
        assert!(message.contains("client certificate"), "{message}");
    }

    #[test]
    fn a_bad_argument_is_answered_in_one_line_that_names_it() {
        let cases: &[(&[&str], &[&str])] = &[
            (&[], &["--group"]),
            (&["--group", "g", "--ttl", "soon"], &["'soon'", "--ttl", "5s or 250ms"]),
            (&["--group", "g", "--ttl", "5"], &["'5'", "--ttl"]),
            (&["--group", "g", "--ttl", ""], &["--ttl"]),
            (&["--group", "g", "--wait", "99999999999999999999s"], &["--wait", "5s or 250ms"]),
            (&["--group", "g", "--wait", "99999999999999999years"], &["--wait"]),
            (&["--group", "g", "--jitter=-5ms"], &["--jitter"]),
            (&["--group", "g", "--sample", "0s"], &["--sample", "100µs"]),
            (&["--group", "g", "--sample", "2days"], &["--sample", "one day"]),
            (&["--group", "g", "--id", ""], &["--id", "empty"]),
            (&["--group", "g", "--id", "a\nb"], &["--id", "control"]),
            (&["--group", "g", "--format", "yaml"], &["'yaml'", "text, json"]),
            (&["--group", "g", "--on-renew-error", "x"], &["demote, retry"]),
            (&["--group", "g", "--tls-cert", "f"], &["--tls-key"]),
            (&["--group", "g", "--tls-key", "f"], &["--tls-cert"]),
            (&["--group", "g", "--groop", "h"], &["--groop", "--group"]),
            (&["--group", "g", "more"], &["'more'"]),
        ];
        for (line, parts) in cases {
            let message = refused(line);
            assert!(!message.contains('\n') && !message.starts_with("error"), "{message:?}");
            assert!(!message.contains("Usage") && !message.contains("--help"), "{message:?}");
            for part in *parts {
                assert!(message.contains(part), "{line:?}: {message:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn a_url_in_the_wrong_place_does_not_show_its_password() {
        let url = "redis://me:se@cr'et \nsecret@host/";
        for line in [
            &["--group", "g", "--ttl", url][..],
            &["--group", "g", url],
            &["--group", "g", "--redis", "--id", url, url],
            &["--group", "g", "--rediss=redis://:secret@host"],
            &["--group", "g", "unix:///run/s.sock?pass=secret"],
            &["--group", "g", "--ttl", "unix:/run/s.sock?db=1&pass=secret"],
            &["--group", "g", "--wait", "redis:/me:secret@host"],
            &["--group", "g", "--jitter", "pass=secret"],
        ] {
            let message = refused(line);
            assert!(!message.contains("cr") && !message.contains("me:"), "{message:?}");
        }
        let message = Args::try_parse_from(["taskrunner", url]).err().map(|error| complaint(&error));
        assert!(message.is_some_and(|message| !message.contains("cr'")), "the place of the subcommand");
    }

    #[test]
    fn lines_without_a_password_stay_as_they_are() {
        for line in ["bad 'redis' for x", "a@b", "5:30", ""] {
            assert_eq!(without_password(line), line);
        }
    }
}
