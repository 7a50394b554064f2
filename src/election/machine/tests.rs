//! The machine in virtual time: each case is a script of inputs and everything that must follow.

mod regressions;
mod strict;

use super::*;
use crate::election::store::{Class, Holding, Outcome};

const MS: Duration = Duration::from_millis(1);

/// ttl 1000, wait 1200, no jitter, stop margin 50, call limit 500, lead grace 300 ms.
///
/// So a term is proved for 950 ms and renewed after 500.
const TIMING: Timing = Timing {
    strict: None,
    ttl: Duration::from_millis(1000),
    wait: Duration::from_millis(1200),
    jitter: Duration::ZERO,
    stop_margin: Duration::from_millis(50),
    call_limit: Duration::from_millis(500),
    renew_error: RenewError::Demote,
    lead_grace: Duration::from_millis(300),
};

/// With ttl 1200 and stop margin 60 a term is proved for 1140 ms and renewed after 600; a retried
/// renewal has 200 ms and pauses 50.
const LONGER: Timing =
    Timing { ttl: Duration::from_millis(1200), stop_margin: Duration::from_millis(60), ..TIMING };
const RETRY: Timing = Timing { renew_error: RenewError::Retry, ..LONGER };
const JITTER: Timing = Timing { jitter: Duration::from_millis(100), ..TIMING };

/// A machine, and its past in short lines.
struct Scene {
    machine: Machine,
    dice: f64,
    now: u64,
}

impl Scene {
    fn new(timing: Timing) -> Self {
        Self::with(timing, 0.0)
    }

    fn with(timing: Timing, dice: f64) -> Self {
        let now = Moment { at: Instant::from_millis(0), dice };
        Self { machine: Machine::new("me".into(), timing, now), dice, now: 0 }
    }

    /// Gives an input at a time; what follows must be exactly these lines.
    #[track_caller]
    fn at(&mut self, now: u64, input: Input, expected: &[&str]) -> &mut Self {
        assert!(now >= self.now, "the script goes back in time");
        self.now = now;
        let mut out = Vec::new();
        let moment = Moment { at: Instant::from_millis(now), dice: self.dice };
        self.machine.handle(moment, input, &mut out);
        let out: Vec<String> = out.iter().map(shown).collect();
        assert_eq!(out, expected, "at {now} ms");
        self
    }

    /// Nothing is due before `at`; then comes the input that only time gives.
    #[track_caller]
    fn wakes(&mut self, at: u64, expected: &[&str]) -> &mut Self {
        assert_eq!(millis(self.machine.wake_at()), Some(at), "when it wants to be called");
        if at > self.now {
            self.at(at - 1, Input::Time, &[]);
        }
        self.at(at, Input::Time, expected)
    }

    /// It looks who leads, for it may not contend, and nobody does.
    #[track_caller]
    fn looks(&mut self, at: u64) -> &mut Self {
        self.wakes(at, &["look"]).answer(at, Ok(Answer::Vacant), &[])
    }

    /// The answer to the operation in flight.
    #[track_caller]
    fn answer(&mut self, now: u64, result: Result<Answer, StoreError>, expected: &[&str]) -> &mut Self {
        let op = self.machine.last_op;
        self.at(now, Input::Answer { op, result }, expected)
    }

    /// The answer to an operation that is no longer in flight.
    #[track_caller]
    fn stray(&mut self, now: u64, op: u64, result: Result<Answer, StoreError>) -> &mut Self {
        self.at(now, Input::Answer { op, result }, &[])
    }

    #[track_caller]
    fn never_wakes(&mut self) -> &mut Self {
        assert_eq!(millis(self.machine.wake_at()), None, "when it wants to be called");
        self
    }
}

fn millis(instant: Instant) -> Option<u64> {
    (instant != Instant::NEVER).then(|| instant.as_nanos() / 1_000_000)
}

fn shown(output: &Output) -> String {
    let until = |instant: &Instant| millis(*instant).map_or_else(|| "never".into(), |at| at.to_string());
    match output {
        Output::Send { action, until: by, .. } => match action {
            Action::Acquire { attempt, floor } => {
                format!("acquire attempt {attempt} floor {floor} by {}", until(by))
            }
            Action::Renew { token } => format!("renew {token} by {}", until(by)),
            Action::Release { token } => format!("release {token} by {}", until(by)),
            Action::Look => "look".into(),
        },
        Output::Shorten { until: by, .. } => format!("shorten to {}", until(by)),
        Output::Promoted { token, until: by } => format!("promoted {token} until {}", until(by)),
        Output::Extended { until: by } => format!("extended until {}", until(by)),
        Output::Demoted { token, reason } => format!("demoted {token} {reason}"),
        Output::Leader(None) => "leader none".into(),
        Output::Leader(Some(Leader { id, token, .. })) => match token {
            Some(token) => format!("leader {id} {token}"),
            None => format!("leader {id}"),
        },
        Output::Failed { operation, error } => format!("failed {operation}: {error}"),
        Output::Unlike { operation, holder, strict } => {
            let replicas = strict.map(|strict| strict.replicas);
            format!("unlike {holder} with {replicas:?} replicas seen by {operation}")
        }
        Output::Unending { operation, holder } => format!("unending {holder} seen by {operation}"),
        Output::FarAhead { token, by } => format!("token {token} ahead by {by:?}"),
        Output::Unheard => "unheard".into(),
        Output::Overrun { token, since } => format!("overrun {token} since {}", until(since)),
        Output::Left { unreleased: None } => "left".into(),
        Output::Left { unreleased: Some(lease) } => {
            let why = match &lease.error {
                _ if lease.overrun => "overrun".into(),
                Some(error) => error.to_string(),
                None => "no answer".into(),
            };
            let token = lease.token.map_or_else(|| "unknown".into(), |token| token.to_string());
            format!("left unreleased {token} until {}: {why}", until(&lease.until))
        }
        Output::Stopped => "stopped".into(),
    }
}

fn won(token: u64) -> Result<Answer, StoreError> {
    Ok(Answer::Won { token, ahead: Duration::ZERO })
}

fn renewed() -> Result<Answer, StoreError> {
    Ok(Answer::Renewed { left: 500 * MS })
}

fn held(holder: &str, token: u64, remaining: u64) -> Result<Answer, StoreError> {
    let remaining = Some(Duration::from_millis(remaining));
    Ok(Answer::Held(Holding { holder: holder.into(), token: Some(token), remaining, strict: None }))
}

/// What a Go instance's lease looks like.
fn held_by_go(remaining: Option<u64>) -> Result<Answer, StoreError> {
    let remaining = remaining.map(Duration::from_millis);
    Ok(Answer::Held(Holding { holder: "go".into(), token: None, remaining, strict: None }))
}

fn error(outcome: Outcome, class: Class) -> Result<Answer, StoreError> {
    Err(StoreError::new(outcome, class, "oh"))
}

fn unknown() -> Result<Answer, StoreError> {
    error(Outcome::Unknown, Class::Passing)
}

fn not_sent() -> Result<Answer, StoreError> {
    error(Outcome::NotSent, Class::Passing)
}

fn refused() -> Result<Answer, StoreError> {
    error(Outcome::Refused, Class::Passing)
}

fn misconfigured() -> Result<Answer, StoreError> {
    error(Outcome::Refused, Class::Configuration)
}

fn wrong_node() -> Result<Answer, StoreError> {
    error(Outcome::Refused, Class::WrongNode)
}

fn step_down(pause: u64) -> Input {
    Input::StepDown { pause: Duration::from_millis(pause) }
}

/// A machine that asked at 0 and was promoted at 10 ms with token 7.
fn leading(timing: Timing) -> Scene {
    let mut scene = Scene::with(timing, 0.0);
    scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
    let until = millis(Instant::from_millis(0) + (timing.ttl - timing.stop_margin)).expect("not never");
    scene.answer(10, won(7), &[&format!("promoted 7 until {until}"), "leader me 7"]);
    scene
}

/// The same, with lead work that runs from then on.
fn leading_with_work(timing: Timing) -> Scene {
    let mut scene = leading(timing);
    scene.at(10, Input::LeadBegan { token: 7 }, &[]);
    scene
}

/// A machine that lost at 10 ms to another, whose lease has 400 ms left.
fn following(timing: Timing) -> Scene {
    let mut scene = Scene::new(timing);
    scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
    scene.answer(10, held("other", 5, 400), &["leader other 5"]);
    scene
}

mod crowd;

mod contending {
    use super::*;

    #[test]
    fn begins_with_an_attempt_at_once() {
        Scene::new(TIMING).wakes(0, &["acquire attempt 1 floor 0 by 500"]).never_wakes();
    }

    #[test]
    fn begins_within_the_jitter() {
        Scene::with(JITTER, 0.5).wakes(50, &["acquire attempt 1 floor 0 by 550"]);
    }

    #[test]
    fn asks_again_right_when_the_others_lease_ends() {
        // What remained was counted when the question arrived, so the next is as long after it.
        following(TIMING).wakes(401, &["acquire attempt 2 floor 5 by 901"]);
    }

    #[test]
    fn the_next_attempt_is_spread_by_the_jitter() {
        let mut scene = Scene::with(JITTER, 0.25);
        scene.wakes(25, &["acquire attempt 1 floor 0 by 525"]);
        scene.answer(30, held("other", 5, 400), &["leader other 5"]);
        scene.wakes(25 + 401 + 25, &["acquire attempt 2 floor 5 by 951"]);
    }

    #[test]
    fn asks_again_after_wait_when_the_lease_is_longer() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(10, held("other", 5, 86_400_000), &["leader other 5"]);
        scene.wakes(1200, &["acquire attempt 2 floor 5 by 1700"]);
    }

    #[test]
    fn asks_at_once_when_the_answer_took_longer_than_the_lease_had_left() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(300, held("other", 5, 200), &["leader other 5", "acquire attempt 2 floor 5 by 800"]);
    }

    #[test]
    fn losing_never_backs_off() {
        let mut scene = following(TIMING);
        for round in 0..50 {
            let at = 401 + round * 11;
            scene.wakes(at, &[&format!("acquire attempt {} floor 5 by {}", round + 2, at + 500)]);
            scene.answer(at, held("other", 5, 10), &[]);
        }
    }

    #[test]
    fn a_lease_without_expiry_is_told_and_waited_for() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(10, held_by_go(None), &["unending go seen by acquire", "leader go"]);
        scene.wakes(1200, &["acquire attempt 2 floor 0 by 1700"]);
        scene.answer(1210, held_by_go(None), &["unending go seen by acquire"]);
    }

    #[test]
    fn a_holder_without_a_token_is_respected_like_any() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(10, held_by_go(Some(5)), &["leader go", "acquire attempt 2 floor 0 by 510"]);
        scene.answer(12, won(9), &["promoted 9 until 960", "leader me 9"]);
    }

    #[test]
    fn the_floor_is_the_highest_token_seen() {
        let mut scene = following(TIMING);
        scene.wakes(401, &["acquire attempt 2 floor 5 by 901"]);
        scene.answer(410, held("third", 3, 100), &["unheard", "leader third 3"]);
        scene.wakes(502, &["acquire attempt 3 floor 5 by 1002"]);
        scene.answer(510, won(6), &["promoted 6 until 1452", "unheard", "leader me 6"]);
    }

    #[test]
    fn the_deadline_counts_from_before_the_request_was_sent() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        // The answer took 400 ms; the term is proved for 550 more, not for 950.
        scene.answer(400, won(7), &["promoted 7 until 950", "leader me 7"]);
    }

    #[test]
    fn a_win_at_its_deadline_or_later_promotes_nobody_and_is_given_back() {
        for late in [950, 951, 5000] {
            let mut scene = Scene::new(TIMING);
            scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
            match late {
                5000 => scene.answer(late, won(7), &["left", "acquire attempt 2 floor 7 by 5500"]),
                _ => scene.answer(late, won(7), &[&format!("release 7 by {}", late + 500)]),
            };
        }
    }

    #[test]
    fn a_win_just_before_its_deadline_promotes() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(949, won(7), &["promoted 7 until 950", "leader me 7", "renew 7 by 950"]);
        scene.wakes(950, &["demoted 7 expired"]);
    }

    #[test]
    fn after_a_late_win_it_contends_at_once_with_a_larger_floor() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(960, won(7), &["release 7 by 1460"]);
        scene.answer(970, Ok(Answer::Released), &["left", "acquire attempt 2 floor 7 by 1470"]);
    }

    #[test]
    fn a_token_far_ahead_of_the_stores_time_is_told() {
        let ahead = Duration::from_secs(24 * 60 * 60) + MS;
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        let won = Ok(Answer::Won { token: 7, ahead });
        scene.answer(1, won, &["token 7 ahead by 86400.001s", "promoted 7 until 950", "leader me 7"]);
    }

    #[test]
    fn an_answer_to_nothing_in_flight_changes_nothing() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]).stray(5, 99, won(7)).never_wakes();
        following(TIMING).stray(20, 1, won(7)).wakes(401, &["acquire attempt 2 floor 5 by 901"]);
    }

    #[test]
    fn each_answer_counts_once() {
        let mut scene = leading(TIMING);
        scene.stray(20, 1, won(9)).stray(30, 1, held("other", 9, 10)).stray(40, 1, unknown());
        scene.wakes(500, &["renew 7 by 950"]);
    }

    #[test]
    fn a_failed_attempt_backs_off_with_full_jitter_and_doubles() {
        let mut scene = Scene::with(TIMING, 0.5);
        let (mut at, mut attempt) = (0, 0);
        for pause in [25, 50, 100, 200, 400, 600, 600, 600] {
            attempt += 1;
            scene.wakes(at, &[&format!("acquire attempt {attempt} floor 0 by {}", at + 500)]);
            scene.answer(at + 3, not_sent(), &["failed connect: oh"]);
            at += 3 + pause;
        }
    }

    #[test]
    fn a_hundred_failures_do_not_overflow_the_back_off() {
        let mut scene = Scene::with(TIMING, 0.5);
        let mut at = 0;
        for _ in 0..100 {
            at = millis(scene.machine.wake_at()).expect("it tries again").max(at);
            let mut out = Vec::new();
            let moment = Moment { at: Instant::from_millis(at), dice: 0.5 };
            scene.machine.handle(moment, Input::Time, &mut out);
            let op = scene.machine.last_op;
            scene.machine.handle(moment, Input::Answer { op, result: unknown() }, &mut out);
            let pause = millis(scene.machine.wake_at()).expect("it tries again") - at;
            assert!(pause <= 600, "{pause}");
        }
    }

    #[test]
    fn an_answer_ends_the_back_off() {
        let mut scene = Scene::with(TIMING, 0.5);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(0, not_sent(), &["failed connect: oh"]);
        scene.wakes(25, &["acquire attempt 2 floor 0 by 525"]);
        scene.answer(25, held("other", 5, 100), &["leader other 5"]);
        scene.wakes(126, &["acquire attempt 3 floor 5 by 626"]);
        scene.answer(126, not_sent(), &["failed connect: oh"]);
        scene.wakes(126 + 25, &["acquire attempt 4 floor 5 by 651"]);
    }

    #[test]
    fn a_configuration_error_is_tried_again_after_wait() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(10, misconfigured(), &["failed acquire: oh"]);
        scene.wakes(1210, &["acquire attempt 2 floor 0 by 1710"]);
    }

    #[test]
    fn a_wrong_node_backs_off_as_a_passing_error_does() {
        let mut scene = Scene::with(TIMING, 0.5);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(10, wrong_node(), &["failed acquire: oh"]);
        scene.wakes(35, &["acquire attempt 2 floor 0 by 535"]);
    }

    #[test]
    fn a_ghost_is_no_win_and_the_next_attempt_has_a_larger_number() {
        let mut scene = Scene::with(TIMING, 0.5);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        let text = "failed acquire: the store has answered a later attempt of this instance already";
        scene.answer(10, Ok(Answer::Ghost), &[text]);
        scene.wakes(35, &["acquire attempt 2 floor 0 by 535"]);
    }

    #[test]
    fn an_answer_that_does_not_fit_is_no_win() {
        for answer in [Answer::Vacant, Answer::Released, Answer::Renewed { left: MS }] {
            let mut scene = Scene::with(TIMING, 0.5);
            scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
            scene.answer(10, Ok(answer), &["failed acquire: the store's answer does not fit an acquire"]);
        }
    }

    #[test]
    fn the_own_leftover_of_a_lost_reply_is_a_new_term() {
        let mut scene = Scene::with(TIMING, 0.5);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(500, unknown(), &["failed acquire: oh"]);
        scene.wakes(525, &["acquire attempt 2 floor 0 by 1025"]);
        scene.answer(530, won(8), &["promoted 8 until 1475", "leader me 8"]);
    }

    #[test]
    fn a_wake_brings_the_next_attempt_forward() {
        following(TIMING).at(100, Input::Wake { token: 5 }, &["acquire attempt 2 floor 5 by 600"]);
        let mut scene = Scene::with(JITTER, 0.5);
        scene.wakes(50, &["acquire attempt 1 floor 0 by 550"]);
        scene.answer(60, held("other", 5, 900), &["leader other 5"]);
        scene.at(100, Input::Wake { token: 5 }, &[]).wakes(125, &["acquire attempt 2 floor 5 by 625"]);
    }

    #[test]
    fn a_wake_never_puts_an_attempt_off() {
        let mut scene = following(TIMING);
        scene.dice = 0.9;
        scene.at(400, Input::Wake { token: 5 }, &["acquire attempt 2 floor 5 by 900"]);
    }

    #[test]
    fn a_wake_during_an_attempt_makes_another_follow_it() {
        let mut scene = following(TIMING);
        scene.wakes(401, &["acquire attempt 2 floor 5 by 901"]);
        scene.at(402, Input::Wake { token: 5 }, &[]);
        scene.answer(403, held("other", 5, 999), &["acquire attempt 3 floor 5 by 903"]);
        scene.answer(404, held("third", 6, 999), &["leader third 6"]);
        scene.wakes(403 + 1000, &["acquire attempt 4 floor 6 by 1903"]);
    }

    #[test]
    fn a_lease_that_passes_on_without_a_wake_is_told() {
        let mut scene = following(TIMING);
        scene.wakes(401, &["acquire attempt 2 floor 5 by 901"]);
        scene.answer(410, held("third", 6, 100), &["unheard", "leader third 6"]);
        scene.at(420, Input::Wake { token: 6 }, &["acquire attempt 3 floor 6 by 920"]);
        scene.answer(430, won(9), &["promoted 9 until 1370", "leader me 9"]);
    }

    #[test]
    fn a_wakes_token_does_not_raise_the_floor() {
        following(TIMING).at(100, Input::Wake { token: 999 }, &["acquire attempt 2 floor 5 by 600"]);
    }

    #[test]
    fn a_step_down_of_a_follower_only_pauses_it() {
        let mut scene = following(TIMING);
        scene.at(100, step_down(1000), &[]).wakes(401, &["look"]);
        scene.answer(402, held("third", 6, 300), &["unheard", "leader third 6"]);
        scene.wakes(702, &["look"]).answer(703, held("third", 6, 900), &[]);
        scene.wakes(1100, &["acquire attempt 2 floor 6 by 1600"]);
        following(TIMING).at(100, step_down(100), &[]).wakes(401, &["acquire attempt 2 floor 5 by 901"]);
        let mut scene = following(TIMING);
        scene.at(100, step_down(320), &[]).wakes(401, &[]).wakes(420, &["acquire attempt 2 floor 5 by 920"]);
        let mut scene = following(TIMING);
        scene.at(100, Input::StepDown { pause: Duration::MAX }, &[]).wakes(401, &["look"]);
        scene.answer(410, Ok(Answer::Vacant), &["unheard", "leader none"]).looks(1610).looks(2810);
    }

    #[test]
    fn a_win_that_comes_into_a_pause_is_given_back() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.at(5, step_down(700), &["shorten to 505"]);
        scene.answer(10, won(7), &["release 7 by 510"]);
        scene.answer(20, Ok(Answer::Released), &["left"]).looks(45);
        scene.wakes(705, &["acquire attempt 2 floor 7 by 1205"]);
    }

    #[test]
    fn an_attempt_that_fails_does_not_shorten_a_pause() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.at(5, step_down(700), &["shorten to 505"]);
        scene.answer(10, not_sent(), &["failed connect: oh", "look"]).answer(20, Ok(Answer::Vacant), &[]);
        scene.wakes(705, &["acquire attempt 2 floor 0 by 1205"]);
    }

    #[test]
    fn lapses_and_returned_lead_work_mean_nothing_to_a_follower() {
        let mut scene = following(TIMING);
        scene.at(20, Input::Lapsed, &[]).at(30, Input::LeadReturned { token: 5 }, &[]);
        scene.wakes(401, &["acquire attempt 2 floor 5 by 901"]);
    }
}

mod leading_a_term {
    use super::*;

    #[test]
    fn renews_at_half_the_ttl_counted_from_the_send() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(520, renewed(), &["extended until 1450"]);
        scene.wakes(1000, &["renew 7 by 1450"]);
        scene.answer(1400, renewed(), &["extended until 1950"]);
        scene.wakes(1500, &["renew 7 by 1950"]);
    }

    #[test]
    fn the_renewal_is_spread_by_the_jitter() {
        let mut scene = Scene::with(JITTER, 0.5);
        scene.wakes(50, &["acquire attempt 1 floor 0 by 550"]);
        scene.answer(60, won(7), &["promoted 7 until 1000", "leader me 7"]);
        scene.wakes(600, &["renew 7 by 1000"]);
        scene.answer(610, renewed(), &["extended until 1550"]);
        scene.wakes(1150, &["renew 7 by 1550"]);
    }

    #[test]
    fn expires_at_its_deadline_with_a_renewal_in_flight() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.wakes(950, &["demoted 7 expired"]);
        // The renewal's error says why; the lease may be ours until 1500 and is given back.
        scene.answer(951, unknown(), &["failed renew: oh", "release 7 by 1451"]);
    }

    #[test]
    fn a_renewal_that_is_answered_at_the_deadline_or_later_extends_nothing() {
        for late in [950, 951, 1499] {
            let mut scene = leading(TIMING);
            scene.wakes(500, &["renew 7 by 950"]);
            let release = format!("release 7 by {}", late + 500);
            scene.answer(late, renewed(), &["demoted 7 expired", &release]);
        }
    }

    #[test]
    fn a_renewal_that_is_answered_just_before_the_deadline_extends_the_term() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(949, renewed(), &["extended until 1450"]);
        scene.wakes(1000, &["renew 7 by 1450"]);
    }

    #[test]
    fn a_term_that_is_found_lapsed_ends_as_expired() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(949, renewed(), &["extended until 1450"]);
        scene.at(950, Input::Lapsed, &["demoted 7 expired", "release 7 by 1450"]);
    }

    #[test]
    fn a_machine_that_is_called_late_renews_at_once_or_expires() {
        leading(TIMING).at(900, Input::Time, &["renew 7 by 950"]);
        leading(TIMING).at(950, Input::Time, &["demoted 7 expired", "release 7 by 1450"]);
        leading(TIMING)
            .at(9000, Input::Time, &["demoted 7 expired", "leader none", "left"])
            .looks(9025)
            .wakes(10_200, &["acquire attempt 2 floor 7 by 10700"]);
    }

    #[test]
    fn a_no_demotes_at_once_and_releases_nothing() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(510, held("other", 9, 300), &["demoted 7 lost", "leader other 9", "left"]);
        scene.wakes(801, &["acquire attempt 2 floor 9 by 1301"]);
    }

    #[test]
    fn a_lease_that_is_gone_is_won_anew_never_re_created() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        let again = "acquire attempt 2 floor 7 by 1010";
        scene.answer(510, Ok(Answer::Vacant), &["demoted 7 lost", "leader none", "left", again]);
        scene.answer(520, won(8), &["promoted 8 until 1460", "leader me 8"]);
    }

    #[test]
    fn a_foreign_value_without_expiry_demotes_and_is_told() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(
            510,
            held_by_go(None),
            &["demoted 7 lost", "unending go seen by renew", "leader go", "left"],
        );
        scene.wakes(1700, &["acquire attempt 2 floor 7 by 2200"]);
    }

    #[test]
    fn a_lease_of_ours_whose_term_was_lost_is_won_anew_at_once() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        let holding = Holding { holder: "me".into(), token: None, remaining: Some(500 * MS), strict: None };
        let again = "acquire attempt 2 floor 7 by 1010";
        scene.answer(510, Ok(Answer::Held(holding)), &["demoted 7 lost", "leader me", "left", again]);
    }

    #[test]
    fn an_answer_that_does_not_fit_a_renewal_ends_the_term() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        let again = "acquire attempt 2 floor 7 by 1010";
        scene.answer(510, won(9), &["demoted 7 lost", "leader none", "left", again]);
    }

    #[test]
    fn a_wake_means_nothing_to_a_leader() {
        leading(TIMING).at(100, Input::Wake { token: 3 }, &[]).wakes(500, &["renew 7 by 950"]);
    }

    #[test]
    fn asks_at_once_whether_it_still_leads_when_the_wake_connection_is_lost() {
        let mut scene = leading(TIMING);
        scene.at(100, Input::WakeLost, &["renew 7 by 266"]).at(101, Input::WakeLost, &[]);
        scene.answer(110, renewed(), &["extended until 1050"]);
        scene.wakes(600, &["renew 7 by 1050"]).at(601, Input::WakeLost, &[]);
    }

    #[test]
    fn a_wake_connection_that_comes_and_goes_makes_no_storm_of_renewals() {
        let mut scene = leading(TIMING);
        scene.at(20, Input::WakeLost, &[]).at(60, Input::WakeBack, &[]).at(99, Input::WakeLost, &[]);
        scene.at(100, Input::WakeBack, &["renew 7 by 266"]).answer(105, renewed(), &["extended until 1050"]);
        scene.at(150, Input::WakeLost, &[]).at(199, Input::WakeBack, &[]);
        scene.at(200, Input::WakeLost, &["renew 7 by 366"]).answer(205, not_sent(), &[]);
        // What failed was sent, too.
        scene.at(250, Input::WakeLost, &[]).wakes(600, &["renew 7 by 1050"]);
    }

    #[test]
    fn an_early_renewal_that_fails_leaves_it_to_the_one_in_time() {
        let mut scene = leading(TIMING);
        scene.at(100, Input::WakeLost, &["renew 7 by 266"]);
        scene.answer(110, not_sent(), &[]).wakes(500, &["renew 7 by 950"]);
        scene.answer(510, not_sent(), &["demoted 7 renew_error", "failed connect: oh", "release 7 by 1010"]);
    }

    #[test]
    fn an_early_renewal_that_is_answered_with_a_no_ends_the_term() {
        let mut scene = leading(TIMING);
        scene.at(100, Input::WakeLost, &["renew 7 by 266"]);
        scene.answer(110, held("other", 9, 300), &["demoted 7 lost", "leader other 9", "left"]);
    }

    #[test]
    fn a_follower_asks_soon_after_wakes_may_have_been_missed() {
        following(TIMING).at(100, Input::WakeBack, &["acquire attempt 2 floor 5 by 600"]);
        let mut scene = following(TIMING);
        scene.at(100, step_down(1000), &[]).at(110, Input::WakeBack, &[]).wakes(135, &["look"]);
    }

    #[test]
    fn what_may_have_been_missed_while_an_attempt_was_under_way_is_asked_after_its_answer() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]).at(5, Input::WakeBack, &[]);
        scene.answer(10, held("other", 5, 400), &["leader other 5", "acquire attempt 2 floor 5 by 510"]);
        scene.answer(20, held("other", 5, 390), &[]).wakes(10 + 391, &["acquire attempt 3 floor 5 by 901"]);
    }

    #[test]
    fn what_only_somebody_else_can_change_is_not_asked_again_for_wakes_that_are_heard_again() {
        let unending = ["unending go seen by acquire", "leader go"];
        for (result, told, next) in
            [(misconfigured(), &["failed acquire: oh"][..], 1210), (held_by_go(None), &unending, 1200)]
        {
            for early in [true, false] {
                let mut scene = Scene::new(TIMING);
                scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
                if early {
                    scene.at(5, Input::WakeBack, &[]);
                }
                scene.answer(10, result.clone(), told);
                if !early {
                    scene.at(20, Input::WakeBack, &[]);
                }
                scene.wakes(next, &[&format!("acquire attempt 2 floor 0 by {}", next + 500)]);
            }
        }
    }

    #[test]
    fn a_wake_that_came_during_the_attempt_counts_also_where_the_lease_never_ended_by_itself() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]).at(5, Input::Wake { token: 4 }, &[]);
        let told = ["unending go seen by acquire", "leader go", "acquire attempt 2 floor 0 by 510"];
        scene.answer(10, held_by_go(None), &told);
    }

    #[test]
    fn a_lost_wake_connection_means_nothing_to_a_follower() {
        following(TIMING).at(100, Input::WakeLost, &[]).wakes(401, &["acquire attempt 2 floor 5 by 901"]);
    }

    #[test]
    fn the_longest_ttl_does_not_overflow() {
        let day = Duration::from_secs(24 * 60 * 60);
        let timing = Timing { ttl: day, stop_margin: day / 20, wait: Duration::MAX, ..TIMING };
        let mut scene = leading(timing);
        scene.wakes(
            day.as_millis() as u64 / 2,
            &[&format!("renew 7 by {}", day.as_millis() as u64 / 20 * 19)],
        );
    }
}

mod renewal_errors {
    use super::*;

    #[test]
    fn demote_steps_aside_at_once_and_gives_the_lease_back() {
        for (result, line) in [
            (unknown(), "failed renew: oh"),
            (refused(), "failed renew: oh"),
            (not_sent(), "failed connect: oh"),
            (wrong_node(), "failed renew: oh"),
            (misconfigured(), "failed renew: oh"),
        ] {
            let mut scene = leading(TIMING);
            scene.wakes(500, &["renew 7 by 950"]);
            scene.answer(510, result, &["demoted 7 renew_error", line, "release 7 by 1010"]);
            scene.answer(520, Ok(Answer::Released), &["leader none", "left"]).looks(545);
            scene.wakes(510 + 1200, &["acquire attempt 2 floor 7 by 2210"]);
        }
    }

    #[test]
    fn the_release_is_tried_until_the_lease_has_ended_by_itself() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(510, refused(), &["demoted 7 renew_error", "failed renew: oh", "release 7 by 1010"]);
        let mut at = 510;
        while at + 25 < 1500 {
            scene.answer(at, not_sent(), &[]);
            at += 25;
            scene.wakes(at, &[&format!("release 7 by {}", at + 500)]);
        }
        // The renewal that failed was sent at 500: what it may have set ends at 1500.
        scene.answer(at, not_sent(), &[]).wakes(1500, &["leader none", "left"]);
        scene.looks(1525).wakes(1710, &["acquire attempt 2 floor 7 by 2210"]);
    }

    #[test]
    fn a_release_in_flight_at_the_leases_end_is_waited_for() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(940, unknown(), &["demoted 7 renew_error", "failed renew: oh", "release 7 by 1440"]);
        scene.answer(1430, unknown(), &[]).wakes(1455, &["release 7 by 1955"]).never_wakes();
        scene.answer(1800, unknown(), &["leader none", "left"]).looks(1825);
        scene.wakes(940 + 1200, &["acquire attempt 2 floor 7 by 2640"]);
    }

    #[test]
    fn the_own_attempt_waits_for_the_release_however_long_it_takes() {
        let timing = Timing { wait: 100 * MS, ..TIMING };
        let mut scene = leading(timing);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(510, unknown(), &["demoted 7 renew_error", "failed renew: oh", "release 7 by 1010"]);
        scene.answer(
            900,
            Ok(Answer::Released),
            &["leader none", "left", "acquire attempt 2 floor 7 by 1400"],
        );
    }

    #[test]
    fn anothers_wake_shortens_the_own_wait_and_the_own_wake_does_not() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(510, unknown(), &["demoted 7 renew_error", "failed renew: oh", "release 7 by 1010"]);
        scene.answer(520, Ok(Answer::Released), &["leader none", "left"]);
        scene.at(521, Input::Wake { token: 7 }, &[]);
        scene.at(600, Input::Wake { token: 8 }, &["acquire attempt 2 floor 7 by 1100"]);
    }

    #[test]
    fn a_wake_of_an_earlier_term_than_the_own_last_one_tells_nothing() {
        let mut scene = leading(TIMING);
        scene.at(100, step_down(0), &["demoted 7 stepped_down", "release 7 by 600"]);
        let again = "acquire attempt 2 floor 7 by 610";
        scene.answer(110, Ok(Answer::Released), &["leader none", "left", again]);
        scene.answer(120, won(8), &["promoted 8 until 1060", "leader me 8"]);
        scene.wakes(610, &["renew 8 by 1060"]);
        scene.answer(620, unknown(), &["demoted 8 renew_error", "failed renew: oh", "release 8 by 1120"]);
        scene.answer(630, Ok(Answer::Released), &["leader none", "left"]).looks(655);
        // The own release of token 7, heard late.
        scene.at(660, Input::Wake { token: 7 }, &[]).wakes(1820, &["acquire attempt 3 floor 8 by 2320"]);
    }

    #[test]
    fn anothers_wake_during_the_release_counts_after_it() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(510, unknown(), &["demoted 7 renew_error", "failed renew: oh", "release 7 by 1010"]);
        scene.at(515, Input::Wake { token: 8 }, &[]);
        scene.answer(520, Ok(Answer::Vacant), &["leader none", "left", "acquire attempt 2 floor 7 by 1020"]);
    }

    #[test]
    fn a_release_that_finds_another_holder_touches_nothing() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(510, unknown(), &["demoted 7 renew_error", "failed renew: oh", "release 7 by 1010"]);
        scene.answer(520, held("other", 9, 100), &["leader other 9", "left"]).wakes(545, &["look"]);
        scene.answer(546, held("other", 9, 900), &[]).wakes(1446, &["look"]);
        scene.answer(1446, held("other", 9, 900), &[]);
        scene.wakes(1710, &["acquire attempt 2 floor 9 by 2210"]);
    }

    #[test]
    fn a_release_without_the_right_to_is_not_tried_again() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(510, unknown(), &["demoted 7 renew_error", "failed renew: oh", "release 7 by 1010"]);
        scene.answer(520, misconfigured(), &["left unreleased 7 until 1500: oh"]).wakes(545, &["look"]);
        scene.answer(546, held("me", 7, 954), &[]).wakes(1500, &["look"]);
        scene.answer(1501, Ok(Answer::Vacant), &["leader none"]);
        scene.wakes(1710, &["acquire attempt 2 floor 7 by 2210"]);
    }

    #[test]
    fn retry_tells_nothing_while_the_term_stands() {
        let mut scene = leading(RETRY);
        scene.wakes(600, &["renew 7 by 800"]);
        scene.answer(610, refused(), &[]);
        scene.wakes(660, &["renew 7 by 860"]);
        scene.answer(860, unknown(), &[]);
        scene.wakes(910, &["renew 7 by 1110"]);
        scene.answer(920, renewed(), &["extended until 2050"]);
        scene.wakes(1510, &["renew 7 by 1710"]);
    }

    #[test]
    fn retry_ends_at_the_deadline_and_says_why() {
        let mut scene = leading(RETRY);
        scene.wakes(600, &["renew 7 by 800"]);
        scene.answer(800, unknown(), &[]).wakes(850, &["renew 7 by 1050"]);
        scene.answer(1050, unknown(), &[]).wakes(1100, &["renew 7 by 1140"]);
        scene.wakes(1140, &["demoted 7 expired", "failed renew: oh"]);
        scene.answer(1141, unknown(), &["failed renew: oh", "release 7 by 1641"]);
    }

    #[test]
    fn a_store_that_cannot_be_reached_is_told_as_such_also_where_the_term_expires_of_it() {
        let mut scene = leading(RETRY);
        scene.wakes(600, &["renew 7 by 800"]);
        scene.answer(1120, not_sent(), &[]);
        scene.wakes(1140, &["demoted 7 expired", "failed connect: oh", "release 7 by 1640"]);
    }

    #[test]
    fn an_error_that_was_overcome_is_not_told_later() {
        let mut scene = leading(RETRY);
        scene.wakes(600, &["renew 7 by 800"]);
        scene.answer(610, refused(), &[]).wakes(660, &["renew 7 by 860"]);
        scene.answer(670, renewed(), &["extended until 1800"]);
        scene.wakes(1260, &["renew 7 by 1460"]);
        scene.wakes(1800, &["demoted 7 expired"]);
    }

    #[test]
    fn retry_still_believes_a_no() {
        let mut scene = leading(RETRY);
        scene.wakes(600, &["renew 7 by 800"]);
        scene.answer(610, unknown(), &[]).wakes(660, &["renew 7 by 860"]);
        scene.answer(670, held("other", 9, 300), &["demoted 7 lost", "leader other 9", "left"]);
    }
}

mod stepping_down {
    use super::*;

    #[test]
    fn releases_and_pauses() {
        let mut scene = leading(TIMING);
        scene.at(100, step_down(2000), &["demoted 7 stepped_down", "release 7 by 600"]);
        scene.answer(110, Ok(Answer::Released), &["leader none", "left"]).wakes(135, &["look"]);
        scene.answer(136, held("other", 9, 1000), &["leader other 9"]);
        scene.wakes(1136, &["look"]).answer(1137, unknown(), &["failed look: oh", "look"]);
        scene.answer(1138, held("other", 9, 5000), &[]);
        scene.wakes(2100, &["acquire attempt 2 floor 9 by 2600"]);
    }

    #[test]
    fn anothers_wake_does_not_shorten_the_pause() {
        let mut scene = leading(TIMING);
        scene.at(100, step_down(2000), &["demoted 7 stepped_down", "release 7 by 600"]);
        scene.answer(110, Ok(Answer::Released), &["leader none", "left"]);
        scene.at(120, Input::Wake { token: 9 }, &[]).looks(135).looks(1335);
        scene.wakes(2100, &["acquire attempt 2 floor 7 by 2600"]);
    }

    #[test]
    fn cuts_a_renewal_in_flight_and_releases_after_it() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.at(600, step_down(2000), &["demoted 7 stepped_down", "shorten to 1100"]);
        scene.answer(700, renewed(), &["release 7 by 1200"]);
        scene.answer(710, Ok(Answer::Released), &["leader none", "left"]);
    }

    #[test]
    fn a_pause_that_is_shorter_than_the_rest_still_holds_after_a_wake() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(510, refused(), &["demoted 7 renew_error", "failed renew: oh", "release 7 by 1010"]);
        scene.answer(520, Ok(Answer::Released), &["leader none", "left"]).looks(545);
        scene.at(600, step_down(1000), &[]).at(700, Input::Wake { token: 9 }, &[]).looks(725);
        scene.wakes(1600, &["acquire attempt 2 floor 7 by 2100"]);
    }

    #[test]
    fn gives_back_what_an_attempt_without_a_reply_may_have_won() {
        let mut scene = Scene::with(TIMING, 0.5);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(500, unknown(), &["failed acquire: oh"]);
        scene.at(510, step_down(2000), &["release 0 by 1010"]);
        scene.answer(520, held("me", 8, 400), &["release 8 by 1020"]);
        scene.answer(530, Ok(Answer::Released), &["left"]).looks(555).looks(1755);
        scene.wakes(2510, &["acquire attempt 2 floor 8 by 3010"]);
    }

    #[test]
    fn without_a_pause_it_contends_again_after_the_release() {
        let mut scene = leading(TIMING);
        scene.at(100, step_down(0), &["demoted 7 stepped_down", "release 7 by 600"]);
        scene.answer(110, Ok(Answer::Released), &["leader none", "left", "acquire attempt 2 floor 7 by 610"]);
    }

    #[test]
    fn a_second_step_down_only_lengthens_the_pause() {
        let mut scene = leading(TIMING);
        scene.at(100, step_down(500), &["demoted 7 stepped_down", "release 7 by 600"]);
        scene.at(105, step_down(1000), &["shorten to 605"]);
        scene.answer(110, Ok(Answer::Released), &["leader none", "left"]);
        scene.at(120, step_down(10), &[]).looks(135).wakes(1105, &["acquire attempt 2 floor 7 by 1605"]);
    }
}

mod lead_work {
    use super::*;

    #[test]
    fn is_waited_for_before_the_release_while_the_token_is_renewed() {
        let mut scene = leading_with_work(LONGER);
        scene.at(100, step_down(2000), &["demoted 7 stepped_down", "renew 7 by 300"]);
        scene.answer(110, renewed(), &[]);
        scene.at(250, Input::LeadReturned { token: 7 }, &["release 7 by 750"]);
        scene.answer(260, Ok(Answer::Released), &["leader none", "left"]);
    }

    #[test]
    fn errors_of_those_renewals_change_nothing() {
        let mut scene = leading_with_work(LONGER);
        scene.wakes(600, &["renew 7 by 1140"]);
        scene.answer(610, unknown(), &["demoted 7 renew_error", "failed renew: oh", "renew 7 by 810"]);
        scene.answer(620, unknown(), &[]).wakes(670, &["renew 7 by 870"]);
        scene.answer(680, misconfigured(), &[]).wakes(730, &["renew 7 by 930"]);
        scene.at(740, Input::LeadReturned { token: 7 }, &[]);
        scene.answer(750, renewed(), &["release 7 by 1250"]);
    }

    #[test]
    fn no_contending_while_it_runs_and_its_overrun_is_told_every_wait() {
        let mut scene = leading_with_work(LONGER);
        scene.at(100, step_down(0), &["demoted 7 stepped_down", "renew 7 by 300"]);
        scene.answer(110, renewed(), &[]);
        scene.wakes(400, &["overrun 7 since 100"]);
        scene.wakes(1600, &["overrun 7 since 100"]).wakes(2800, &["overrun 7 since 100"]);
        let again = "acquire attempt 2 floor 7 by 3500";
        scene.at(3000, Input::LeadReturned { token: 7 }, &["leader none", "left", again]);
    }

    #[test]
    fn after_a_loss_nothing_is_renewed_while_it_is_waited_for() {
        let mut scene = leading_with_work(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(510, held("other", 9, 100), &["demoted 7 lost", "leader other 9"]);
        scene.wakes(810, &["overrun 7 since 510"]);
        scene.at(900, Input::LeadReturned { token: 7 }, &["left", "acquire attempt 2 floor 9 by 1400"]);
    }

    #[test]
    fn that_returns_by_itself_ends_the_term_and_pauses_one_wait() {
        let mut scene = leading_with_work(TIMING);
        scene.at(100, Input::LeadReturned { token: 7 }, &["demoted 7 lead_ended", "release 7 by 600"]);
        scene.answer(110, Ok(Answer::Released), &["leader none", "left"]);
        scene.at(120, Input::Wake { token: 9 }, &[]).looks(135);
        scene.wakes(1300, &["acquire attempt 2 floor 7 by 1800"]);
    }

    #[test]
    fn that_begins_as_its_term_expires_is_waited_for() {
        let mut scene = leading(LONGER);
        scene.wakes(600, &["renew 7 by 1140"]).answer(610, renewed(), &["extended until 1740"]);
        scene.at(1740, Input::LeadBegan { token: 7 }, &["demoted 7 expired", "renew 7 by 1940"]);
        scene.answer(1750, renewed(), &[]);
        scene.at(1800, Input::LeadReturned { token: 7 }, &["release 7 by 2300"]);
        scene.answer(1810, Ok(Answer::Released), &["leader none", "left"]);
        // Whatever begins later is of no term.
        scene.at(1811, Input::LeadBegan { token: 7 }, &[]);
    }

    #[test]
    fn of_another_term_is_none_of_this_ones_business() {
        let mut scene = leading_with_work(TIMING);
        scene.at(100, Input::LeadReturned { token: 6 }, &[]).wakes(500, &["renew 7 by 950"]);
    }

    #[test]
    fn a_stop_waits_for_it_and_says_so_if_it_overruns() {
        let mut scene = leading_with_work(LONGER);
        scene.at(100, Input::Stop, &["demoted 7 stopped", "renew 7 by 300"]);
        scene.answer(110, renewed(), &[]);
        scene.wakes(400, &["overrun 7 since 100", "left unreleased 7 until 1300: overrun", "stopped"]);
        scene.never_wakes();
    }

    #[test]
    fn a_stop_releases_once_it_has_returned() {
        let mut scene = leading_with_work(LONGER);
        scene.at(100, Input::Stop, &["demoted 7 stopped", "renew 7 by 300"]);
        scene.answer(110, renewed(), &[]);
        scene.at(300, Input::LeadReturned { token: 7 }, &["release 7 by 800"]);
        scene.answer(310, Ok(Answer::Released), &["leader none", "left", "stopped"]);
    }
}

mod stopping {
    use super::*;

    #[test]
    fn a_look_in_flight_is_not_waited_for() {
        let mut scene = following(TIMING);
        scene.at(100, step_down(1000), &[]).wakes(401, &["look"]);
        scene.at(410, Input::Stop, &["shorten to 910", "left", "stopped"]).never_wakes();
    }

    #[test]
    fn a_follower_sends_nothing() {
        following(TIMING).at(100, Input::Stop, &["left", "stopped"]).never_wakes();
        Scene::new(TIMING).at(0, Input::Stop, &["left", "stopped"]).never_wakes();
    }

    #[test]
    fn a_leader_ends_its_term_and_then_releases() {
        let mut scene = leading(TIMING);
        scene.at(100, Input::Stop, &["demoted 7 stopped", "release 7 by 600"]);
        scene.answer(110, Ok(Answer::Released), &["leader none", "left", "stopped"]).never_wakes();
    }

    #[test]
    fn twice_is_once() {
        let mut scene = leading(TIMING);
        scene.at(100, Input::Stop, &["demoted 7 stopped", "release 7 by 600"]);
        scene.at(400, Input::Stop, &[]).at(401, step_down(0), &["shorten to 901"]);
        scene.answer(410, Ok(Answer::Released), &["leader none", "left", "stopped"]);
        scene.at(500, Input::Stop, &[]).at(501, step_down(0), &[]).at(502, Input::Wake { token: 8 }, &[]);
        scene.at(9999, Input::Time, &[]).never_wakes();
    }

    #[test]
    fn is_over_after_two_call_limits_whatever_the_store_does() {
        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.at(600, Input::Stop, &["demoted 7 stopped", "shorten to 1100"]);
        scene.answer(1100, unknown(), &["release 7 by 1600"]);
        scene.wakes(1600, &["left", "stopped"]).stray(1601, 3, Ok(Answer::Released));
    }

    #[test]
    fn that_cannot_release_says_which_lease_is_left_and_until_when() {
        let mut scene = leading(TIMING);
        scene.at(100, Input::Stop, &["demoted 7 stopped", "release 7 by 600"]);
        let mut at = 100;
        while at < 975 {
            scene.answer(at, not_sent(), &[]);
            at += 25;
            scene.wakes(at, &[&format!("release 7 by {}", (at + 500).min(1100))]);
        }
        // The lease was acquired at 0, so it ends by itself at 1000, before the stop has to.
        scene.answer(at, not_sent(), &[]).wakes(1000, &["leader none", "left", "stopped"]);

        let mut scene = leading(TIMING);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(500, renewed(), &["extended until 1450"]);
        scene.at(501, Input::Stop, &["demoted 7 stopped", "release 7 by 1001"]);
        scene.answer(1001, unknown(), &[]).wakes(1026, &["release 7 by 1501"]);
        scene.answer(1490, misconfigured(), &["left unreleased 7 until 1500: oh", "stopped"]);
    }

    #[test]
    fn an_attempt_in_flight_that_lost_ends_it() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.at(100, Input::Stop, &["shorten to 600"]);
        scene.answer(110, held("other", 5, 400), &["leader other 5", "left", "stopped"]);
    }

    #[test]
    fn an_attempt_in_flight_that_won_is_released_and_promotes_nobody() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.at(100, Input::Stop, &["shorten to 600"]);
        scene.answer(110, won(7), &["release 7 by 610"]);
        scene.answer(120, Ok(Answer::Released), &["left", "stopped"]);
    }

    #[test]
    fn an_attempt_in_flight_that_was_not_sent_or_refused_leaves_nothing() {
        for (result, line) in [(not_sent(), "failed connect: oh"), (refused(), "failed acquire: oh")] {
            let mut scene = Scene::new(TIMING);
            scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
            scene.at(100, Input::Stop, &["shorten to 600"]);
            scene.answer(110, result, &[line, "left", "stopped"]);
        }
    }

    #[test]
    fn a_win_whose_reply_was_lost_is_looked_for_and_released() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.at(100, Input::Stop, &["shorten to 600"]);
        scene.answer(600, unknown(), &["failed acquire: oh", "release 0 by 1100"]);
        scene.answer(610, held("me", 8, 400), &["release 8 by 1100"]);
        scene.answer(620, Ok(Answer::Released), &["left", "stopped"]);
    }

    #[test]
    fn a_lost_reply_of_an_earlier_attempt_is_looked_for_too() {
        let mut scene = Scene::with(TIMING, 0.5);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(500, unknown(), &["failed acquire: oh"]);
        scene.at(510, Input::Stop, &["release 0 by 1010"]);
        scene.answer(520, held("other", 5, 400), &["leader other 5", "left", "stopped"]);
    }

    #[test]
    fn a_lost_reply_that_cannot_be_settled_is_said_to_be_left() {
        let mut scene = Scene::new(TIMING);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.at(100, Input::Stop, &["shorten to 600"]);
        scene.answer(600, unknown(), &["failed acquire: oh", "release 0 by 1100"]);
        scene.wakes(1100, &["left unreleased unknown until 1600: no answer", "stopped"]);
    }

    #[test]
    fn an_answered_attempt_settles_the_lost_reply_before_it() {
        let mut scene = Scene::with(TIMING, 0.5);
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(500, unknown(), &["failed acquire: oh"]);
        scene.wakes(525, &["acquire attempt 2 floor 0 by 1025"]);
        scene.answer(530, held("other", 5, 400), &["leader other 5"]);
        scene.at(540, Input::Stop, &["left", "stopped"]);
    }

    #[test]
    fn own_id_with_another_token_is_released_only_while_stopping() {
        let mut scene = leading(TIMING);
        scene.at(100, step_down(2000), &["demoted 7 stepped_down", "release 7 by 600"]);
        scene.answer(110, held("me", 9, 400), &["leader me 9", "left"]);

        let mut scene = leading(TIMING);
        scene.at(100, Input::Stop, &["demoted 7 stopped", "release 7 by 600"]);
        scene.answer(110, held("me", 9, 400), &["release 9 by 610"]);
        scene.answer(120, Ok(Answer::Released), &["leader none", "left", "stopped"]);
    }

    #[test]
    fn on_the_way_out_of_a_term_goes_on_with_the_release() {
        let mut scene = leading(TIMING);
        scene.at(100, step_down(2000), &["demoted 7 stepped_down", "release 7 by 600"]);
        scene.at(110, Input::Stop, &["shorten to 610"]);
        scene.answer(120, Ok(Answer::Released), &["leader none", "left", "stopped"]);
    }

    #[test]
    fn a_leader_past_its_deadline_was_not_stopped_but_expired() {
        let mut scene = leading(TIMING);
        scene.at(960, Input::Stop, &["demoted 7 expired", "release 7 by 1460"]);
        scene.answer(970, Ok(Answer::Released), &["leader none", "left", "stopped"]);
    }
}
