//! What has gone wrong in other implementations and can be shown in virtual time, each under its id in
//! `tests/REGRESSIONS.md`.

use super::*;
use crate::election::options::Options;

/// One instance on a store that executes what arrives, on a network that may lose replies.
struct Stage {
    machine: Machine,
    now: u64,
    /// How long a message is under way, in ms.
    way: u64,
    /// The token and the end of the lease.
    lease: Option<(u64, u64)>,
    last_token: u64,
    in_flight: Option<Request>,
    sent: usize,
    /// What becomes of the request with this number, and of those after it if the fault stays.
    fault: Option<(usize, Fault)>,
    stays: bool,
    told: Vec<(u64, Output)>,
}

/// A request on its way; it has been executed once there is a result.
struct Request {
    op: u64,
    action: Action,
    fault: Option<Fault>,
    due: u64,
    until: u64,
    result: Option<Result<Answer, StoreError>>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It is executed, and nothing comes back before its limit.
    LostReply,
    /// It never arrives, and nothing comes back before its limit.
    LostRequest,
    /// It is not executed, and this comes back at once.
    Error(Outcome, Class),
    /// It is not executed, and the answer is one to another question.
    Misfit,
}

impl Fault {
    const ALL: [Self; 7] = [
        Self::LostReply,
        Self::LostRequest,
        Self::Error(Outcome::NotSent, Class::Passing),
        Self::Error(Outcome::Refused, Class::Passing),
        Self::Error(Outcome::Refused, Class::Configuration),
        Self::Error(Outcome::Refused, Class::WrongNode),
        Self::Misfit,
    ];
}

impl Stage {
    fn new(timing: Timing, way: u64) -> Self {
        let moment = Moment { at: Instant::from_millis(0), dice: 0.5 };
        Self {
            machine: Machine::new("me".into(), timing, moment),
            now: 0,
            way,
            lease: None,
            last_token: 0,
            in_flight: None,
            sent: 0,
            fault: None,
            stays: false,
            told: Vec::new(),
        }
    }

    fn give(&mut self, input: Input) {
        let mut out = Vec::new();
        let moment = Moment { at: Instant::from_millis(self.now), dice: 0.5 };
        self.machine.handle(moment, input, &mut out);
        for output in out {
            match &output {
                Output::Send { op, action, until } => {
                    let until = millis(*until).expect("every operation has a limit");
                    let fault = self
                        .fault
                        .filter(|(number, _)| self.sent == *number || self.stays && self.sent > *number);
                    let fault = fault.map(|(_, fault)| fault);
                    self.sent += 1;
                    let (op, action, due) = (*op, *action, self.now + self.way);
                    self.in_flight = Some(Request { op, action, fault, due, until, result: None });
                }
                Output::Shorten { op, until } => {
                    let until = millis(*until).expect("every operation has a limit");
                    if let Some(request) = self.in_flight.as_mut().filter(|request| request.op == *op) {
                        request.until = request.until.min(until);
                    }
                }
                _ => {}
            }
            self.told.push((self.now, output));
        }
        self.expect_proof();
    }

    /// What this instance can prove, the store must hold for longer.
    fn expect_proof(&self) {
        if let State::Leading(term) = &self.machine.state
            && Instant::from_millis(self.now) < term.deadline
        {
            let (token, end) = self.lease.expect("a leader without a lease");
            assert_eq!(token, term.token, "at {} ms", self.now);
            assert!(Instant::from_millis(end) > term.deadline, "at {} ms the lease ends at {end}", self.now);
        }
    }

    /// Lets the time pass until then.
    fn run(&mut self, until: u64) {
        loop {
            let request = self.in_flight.as_ref().map(|request| request.due.min(request.until));
            let wake = millis(self.machine.wake_at()).map(|at| at.max(self.now));
            let Some(next) = request.into_iter().chain(wake).min().filter(|next| *next <= until) else {
                self.now = until;
                return;
            };
            self.now = next;
            if request == Some(next) { self.deliver() } else { self.give(Input::Time) }
        }
    }

    fn deliver(&mut self) {
        let mut request = self.in_flight.take().expect("something is due");
        if self.now >= request.until {
            let op = request.op;
            return self.give(Input::Answer { op, result: unknown() });
        }
        match (request.result.take(), request.fault) {
            (Some(result), _) => return self.give(Input::Answer { op: request.op, result }),
            (None, Some(Fault::Error(outcome, class))) => request.result = Some(error(outcome, class)),
            (None, Some(Fault::Misfit)) => {
                request.result = Some(match request.action {
                    Action::Acquire { .. } | Action::Look => renewed(),
                    _ => Ok(Answer::Ghost),
                });
            }
            (None, Some(Fault::LostRequest)) => request.due = request.until,
            (None, Some(Fault::LostReply)) => {
                self.execute(request.action).ok();
                request.due = request.until;
            }
            (None, None) => request.result = Some(self.execute(request.action)),
        }
        if request.result.is_some() {
            request.due = self.now + self.way;
        }
        self.in_flight = Some(request);
    }

    fn execute(&mut self, action: Action) -> Result<Answer, StoreError> {
        let end = self.now + u64::try_from(self.machine.timing.ttl.as_millis()).expect("a short time");
        self.lease = self.lease.filter(|(_, end)| self.now < *end);
        match (action, self.lease) {
            (Action::Acquire { .. }, _) => {
                self.last_token += 1;
                self.lease = Some((self.last_token, end));
                won(self.last_token)
            }
            (Action::Renew { token }, Some((held, _))) if held == token => {
                self.lease = Some((token, end));
                renewed()
            }
            (Action::Release { token }, Some((held, _))) if held == token => {
                self.lease = None;
                Ok(Answer::Released)
            }
            (_, Some((token, end))) => held("me", token, end - self.now),
            (_, None) => Ok(Answer::Vacant),
        }
    }

    fn count(&self, from: u64, is: impl Fn(&Output) -> bool) -> usize {
        self.told.iter().filter(|(at, output)| *at >= from && is(output)).count()
    }
}

/// B13, B15, B16, B17, B90: an error of any operation once killed the loop, the renewal of the next term, or the
/// follower's next attempt.
#[test]
fn whatever_operation_fails_and_however_the_election_goes_on_to_lead_and_to_renew() {
    for timing in [TIMING, RETRY] {
        for fault in Fault::ALL {
            let mut faulty = Vec::new();
            for number in 0..12 {
                let mut stage = Stage::new(timing, 5);
                stage.fault = Some((number, fault));
                stage.run(1800);
                stage.give(step_down(1500));
                stage.run(20_000);
                let request = stage.told.iter().filter_map(|(_, output)| match output {
                    Output::Send { action, .. } => Some(*action),
                    _ => None,
                });
                faulty.push(std::mem::discriminant(&request.clone().nth(number).expect("it was sent")));
                let extensions = stage.count(15_000, |output| matches!(output, Output::Extended { .. }));
                assert!(extensions >= 8, "{fault:?} of request {number}: {extensions} renewals at the end");
                assert!(matches!(stage.machine.state, State::Leading(_)), "{fault:?} of request {number}");
            }
            for action in [
                Action::Acquire { attempt: 1, floor: 0 },
                Action::Renew { token: 1 },
                Action::Release { token: 1 },
                Action::Look,
            ] {
                let action = std::mem::discriminant(&action);
                assert!(faulty.contains(&action), "each kind of operation has failed once");
            }
        }
    }
}

/// B35, B36, B38, B39, B48: a stop that met a renewal or an attempt left a lease behind, or a timer that led again.
#[test]
fn a_stop_at_any_millisecond_leaves_no_lease_untold_and_sends_nothing_after_its_end() {
    const CALL_LIMIT: u64 = 500;
    for (fault, way) in
        [(None, 0), (None, 5), (None, 240), (Some(Fault::LostReply), 5), (Some(Fault::LostRequest), 5)]
    {
        let mut lost = 0;
        for at in 0..2000 {
            // Two call limits are over before the lease is.
            let mut stage = Stage::new(LONGER, way);
            stage.run(at);
            // From the stop on; what is on its way at that moment is lost, too.
            stage.fault = fault.map(|fault| (0, fault));
            stage.stays = true;
            if let Some(request) = stage.in_flight.as_mut().filter(|request| request.result.is_none()) {
                request.fault = fault;
            }
            let already_told = stage.told.len();
            stage.give(Input::Stop);
            stage.run(at + 2 * CALL_LIMIT);
            // A lease's end is told as counted from when the request was sent; it began when that arrived.
            let lease = stage.lease.filter(|(_, end)| stage.now + way < *end);
            stage.run(at + 20_000);

            let told = &stage.told[already_told..];
            assert!(
                told.iter().all(|(_, output)| !matches!(output, Output::Promoted { .. })),
                "stopped at {at}, and led after that"
            );
            let (ended, last) = told.last().expect("a stop is answered");
            assert!(matches!(last, Output::Stopped), "stopped at {at}: {last:?} comes last");
            assert!(*ended <= at + 2 * CALL_LIMIT, "stopped at {at}, ended at {ended}");
            let Some((_, Output::Left { unreleased })) = told.iter().rev().nth(1) else {
                panic!("stopped at {at}, and not left: {told:?}")
            };
            if let Some((_, end)) = lease {
                lost += 1;
                let told = unreleased.as_ref().unwrap_or_else(|| panic!("stopped at {at}: untold"));
                let until = told.until + Duration::from_millis(way);
                assert!(Instant::from_millis(end) <= until, "stopped at {at}: ends at {end}: {told:?}");
                assert!(fault.is_some(), "stopped at {at}: left behind on a good network");
            }
        }
        assert_eq!(lost > 0, fault.is_some(), "{fault:?}: {lost} leases left");
    }
}

/// B14, B22, B25: only a "no" ends the term at once; any error is retried until the deadline, and told then.
#[test]
fn retry_goes_on_until_the_deadline_whatever_the_error_and_tells_the_last_one() {
    for (result, line) in [
        (unknown(), "failed renew: oh"),
        (refused(), "failed renew: oh"),
        (not_sent(), "failed connect: oh"),
        (wrong_node(), "failed renew: oh"),
        (misconfigured(), "failed renew: oh"),
    ] {
        let mut scene = leading(RETRY);
        scene.wakes(600, &["renew 7 by 800"]);
        let mut at = 610;
        while at + 50 < 1140 {
            scene.answer(at, result.clone(), &[]);
            at += 50;
            scene.wakes(at, &[&format!("renew 7 by {}", (at + 200).min(1140))]);
        }
        scene.answer(at, result.clone(), &[]);
        scene.wakes(1140, &["demoted 7 expired", line, "release 7 by 1640"]);

        // A stop between two tries releases as any other does.
        let mut scene = leading(RETRY);
        scene.wakes(600, &["renew 7 by 800"]).answer(610, result, &[]);
        scene.at(630, Input::Stop, &["demoted 7 stopped", "release 7 by 1130"]);
        scene.answer(640, Ok(Answer::Released), &["leader none", "left", "stopped"]);
    }
}

/// B07: the renewal came so close to the lease's end that a healthy leader lost it now and then.
#[test]
fn between_the_latest_renewal_and_the_deadline_lies_a_quarter_of_the_ttl_for_every_legal_timing() {
    let ms = Duration::from_millis;
    let options = |ttl, stop_margin, jitter| Options {
        ttl,
        stop_margin: Some(stop_margin),
        jitter,
        ..Options::default()
    };
    for options in [
        options(ms(100), ms(5), ms(20)),
        options(ms(100), ms(25), Duration::ZERO),
        options(ms(100), ms(2), ms(23)),
        options(ms(5000), ms(250), ms(1000)),
        options(ms(86_400_000), ms(21_600_000), Duration::ZERO),
    ] {
        let timing = options.check().expect("legal");
        let mut now = Moment { at: Instant::from_millis(0), dice: 1.0 };
        let mut machine = Machine::new("me".into(), timing, now);
        let mut out = Vec::new();
        let mut answer = won(7);
        // After the acquire, and then after a renewal.
        for _ in 0..2 {
            now.at = machine.wake_at();
            machine.handle(now, Input::Time, &mut out);
            let op = machine.last_op;
            machine.handle(now, Input::Answer { op, result: answer }, &mut out);
            answer = renewed();
            let State::Leading(term) = &machine.state else { panic!("{options:?}: not leading") };
            let room = term.deadline.saturating_duration_since(machine.wake_at());
            assert!(room >= timing.ttl / 4, "{options:?}: {room:?}");
        }
    }
}
