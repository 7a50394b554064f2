//! Any options at all, and what a machine does with those that are taken when anything happens to it.
//!
//! How often each is tried, and how to try more, stands in `tests/support/cases.rs`.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::cases::cases;
use crate::election::options::Options;
use crate::election::store::{Class, Holding, Outcome};
use crate::election::term::LONGEST_TOKEN;

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A duration of any size, often one at an edge.
fn duration() -> impl Strategy<Value = Duration> {
    let edges: Vec<Duration> = [Duration::ZERO, 10 * MS, 100 * MS, DAY, Duration::from_secs(u64::MAX)]
        .into_iter()
        .flat_map(|edge| {
            let step = Duration::from_nanos(1);
            [edge.saturating_sub(step), edge, edge.saturating_add(step), edge.saturating_add(MS)]
        })
        .chain([Duration::MAX])
        .collect();
    prop_oneof![
        select(edges),
        (0..100_000_u64).prop_map(Duration::from_millis),
        any::<u64>().prop_map(Duration::from_nanos),
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
    ]
}

/// Options that may break every rule, and half of the time none.
fn options() -> impl Strategy<Value = Options> {
    let policy = select(&[RenewError::Demote, RenewError::Retry][..]);
    let good = (100..=86_400_000_u64, 0..=1_000_u32, 0..=1_000_u32).prop_map(|(ttl, margin, jitter)| {
        let ttl = Duration::from_millis(ttl);
        let margin = ttl / 50 + (ttl / 4 - ttl / 50) / 1_000 * margin;
        (ttl, Some(margin), (ttl / 4 - margin) / 1_000 * jitter)
    });
    let any = (duration(), proptest::option::of(duration()), duration());
    (prop_oneof![good, any], duration(), policy, proptest::option::of(duration())).prop_map(
        |((ttl, stop_margin, jitter), wait, renew_error, lead_grace)| Options {
            strict: None,
            ttl,
            stop_margin,
            jitter,
            wait,
            renew_error,
            lead_grace,
        },
    )
}

fn timing() -> impl Strategy<Value = Timing> {
    options().prop_filter_map("refused", |options| options.check().ok())
}

/// The first instant of a machine: early, late, or too late for any sum.
fn start() -> impl Strategy<Value = Instant> {
    let end = Instant::NEVER;
    prop_oneof![
        4 => (0..1_000_000_u64).prop_map(Instant::from_millis),
        1 => duration().prop_map(|since| Instant::from_millis(0) + since),
        1 => duration().prop_map(move |before| end.saturating_sub(before)),
    ]
}

/// What happens next, and how much later.
#[derive(Clone, Debug)]
struct Step {
    after: After,
    dice: f64,
    happens: Happens,
}

#[derive(Clone, Debug)]
enum After {
    /// So long after the last.
    Pause(Duration),
    /// When the machine wants to be called.
    Wanted,
}

#[derive(Clone, Debug)]
enum Happens {
    Input(Input),
    /// The answer to the operation in flight, if there is one.
    Answer(Result<Answer, StoreError>),
    /// Lead work begins in the last term, or returns.
    Lead {
        begins: bool,
    },
}

fn token() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..20_u64, 1 => select(&[LONGEST_TOKEN, u64::MAX][..]), 1 => any::<u64>()]
}

fn answer() -> impl Strategy<Value = Result<Answer, StoreError>> {
    let outcome = select(&[Outcome::NotSent, Outcome::Refused, Outcome::Unknown][..]);
    let class = select(&[Class::Passing, Class::WrongNode, Class::Configuration][..]);
    let holder = select(&["me", "you", ""][..]);
    let remaining = proptest::option::of(duration());
    prop_oneof![
        3 => (token(), duration()).prop_map(|(token, ahead)| Ok(Answer::Won { token, ahead })),
        3 => duration().prop_map(|left| Ok(Answer::Renewed { left })),
        1 => Just(Ok(Answer::Released)),
        3 => (holder, proptest::option::of(token()), remaining).prop_map(|(holder, token, remaining)| {
            Ok(Answer::Held(Holding { holder: holder.into(), token, remaining, strict: None }))
        }),
        1 => Just(Ok(Answer::Vacant)),
        1 => Just(Ok(Answer::Ghost)),
        3 => (outcome, class).prop_map(|(outcome, class)| Err(StoreError::new(outcome, class, "as drawn"))),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let input = prop_oneof![
        4 => Just(Input::Time),
        2 => token().prop_map(|token| Input::Wake { token }),
        1 => Just(Input::WakeLost),
        1 => Just(Input::WakeBack),
        2 => token().prop_map(|token| Input::LeadBegan { token }),
        2 => token().prop_map(|token| Input::LeadReturned { token }),
        1 => Just(Input::Lapsed),
        1 => duration().prop_map(|pause| Input::StepDown { pause }),
        1 => Just(Input::Stop),
        1 => (0..20_u64, answer()).prop_map(|(op, result)| Input::Answer { op, result }),
    ];
    let happens = prop_oneof![
        4 => input.prop_map(Happens::Input),
        5 => answer().prop_map(Happens::Answer),
        3 => prop::bool::weighted(0.8).prop_map(|begins| Happens::Lead { begins }),
    ];
    let after = prop_oneof![
        2 => (0..500_u64).prop_map(|millis| After::Pause(Duration::from_millis(millis))),
        1 => Just(After::Pause(Duration::ZERO)),
        1 => duration().prop_map(After::Pause),
        4 => Just(After::Wanted),
    ];
    // Uniform in 0..1, its edges more often than that.
    let dice = prop_oneof![1 => Just(0.0), 1 => Just(1.0 - f64::EPSILON), 4 => 0.0..1.0];
    (after, dice, happens).prop_map(|(after, dice, happens)| Step { after, dice, happens })
}

proptest! {
    #![proptest_config(cases(8))]

    #[test]
    fn options_are_refused_or_keep_every_rule(options in options()) {
        let Ok(timing) = options.check() else { return Ok(()) };
        let Timing { ttl, wait, jitter, stop_margin, call_limit, lead_grace, .. } = timing;
        prop_assert!(ttl >= 100 * MS && ttl <= DAY && ttl.subsec_nanos() % 1_000_000 == 0);
        prop_assert!(options.ttl - ttl < MS);
        let proved = ttl - stop_margin;
        prop_assert!(proved > Duration::ZERO && proved < ttl);
        prop_assert!(stop_margin >= ttl / 50 && jitter + stop_margin <= ttl / 4);
        // The latest renewal comes before the deadline, and so does one that is tried again.
        prop_assert!(ttl / 2 + jitter < proved);
        prop_assert!(ttl / 2 + jitter + timing.retry_limit() + timing.retry_pause() < proved);
        for limit in [call_limit, timing.retry_limit(), timing.look_limit(), timing.retry_pause(), wait] {
            prop_assert!(limit > Duration::ZERO);
        }
        prop_assert!(call_limit <= ttl / 2 && call_limit <= Duration::from_secs(2));
        // Sums of these stay clear of every overflow.
        prop_assert!(wait >= 10 * MS && wait <= options.wait);
        prop_assert!((wait + lead_grace + call_limit * 2).checked_add(DAY).is_some());
    }

}

proptest! {
    #![proptest_config(cases(1))]

    #[test]
    fn a_machine_neither_panics_nor_wants_to_be_called_at_once_again(
        timing in timing(),
        start in start(),
        steps in vec(step(), 0..60),
    ) {
        let mut now = Moment { at: start, dice: 0.5 };
        let mut machine = Machine::new("me".into(), timing, now);
        let mut leads = None;
        for step in steps {
            now = Moment {
                at: match step.after {
                    After::Pause(pause) => now.at + pause,
                    After::Wanted => now.at.max(machine.wake_at()),
                },
                dice: step.dice,
            };
            let input = match step.happens {
                Happens::Input(input) => input,
                Happens::Answer(result) => Input::Answer { op: machine.last_op, result },
                Happens::Lead { begins: true } => Input::LeadBegan { token: machine.own_token },
                Happens::Lead { begins: false } => Input::LeadReturned { token: machine.own_token },
            };
            let (mut out, shown) = (Vec::new(), format!("{input:?}"));
            machine.handle(now, input, &mut out);
            for output in &out {
                match output {
                    Output::Promoted { token, until } => {
                        prop_assert_eq!(leads.replace(*token), None, "promoted twice");
                        prop_assert!(*until > now.at && *until <= now.at + (timing.ttl - timing.stop_margin));
                    }
                    Output::Extended { until } => prop_assert!(leads.is_some() && *until > now.at),
                    Output::Demoted { token, .. } => prop_assert_eq!(leads.take(), Some(*token)),
                    Output::Send { until, .. } => {
                        prop_assert!(*until > now.at || now.at == Instant::NEVER, "no time: {:?}", output);
                        prop_assert!(*until <= now.at + timing.ttl);
                    }
                    _ => {}
                }
            }
            prop_assert!(out.len() < 10, "{:?}", out);
            // What is due now is done now: a driver that calls at once again would do nothing else.
            out.clear();
            machine.handle(now, Input::Time, &mut out);
            let wanted = machine.wake_at();
            prop_assert!(
                wanted > now.at || now.at == Instant::NEVER,
                "at {:?} after {} wanted at {:?}: {:?}", now.at, shown, wanted, machine
            );
            // Time alone has done all of it already, but for what time ends.
            prop_assert!(out.is_empty() || now.at == Instant::NEVER, "{} left {:?}", shown, out);
        }
        // However it was left, it ends.
        let mut out = Vec::new();
        machine.handle(now, Input::Stop, &mut out);
        let bound = timing.lead_grace + timing.call_limit * 2;
        now.at = now.at + bound;
        machine.handle(now, Input::Time, &mut out);
        prop_assert!(matches!(machine.state, State::Stopped), "{:?}", machine);
        prop_assert_eq!(machine.wake_at(), Instant::NEVER);
        prop_assert!(matches!(out.last(), Some(Output::Stopped)) || out.is_empty());
    }
}
