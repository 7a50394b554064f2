//! What strict changes for the machine: holds, and a lease that is gone before its time.

use super::*;
use crate::election::store::strict::Strictness;

const LONGEST: Duration = Duration::from_millis(3000);
const STRICT: Timing = Timing { strict: Some(Strictness { replicas: 2, longest: LONGEST }), ..TIMING };

fn held_by(holder: &str, token: Option<u64>, strict: Option<Strictness>) -> Result<Answer, StoreError> {
    Ok(Answer::Held(Holding { holder: holder.into(), token, remaining: Some(400 * MS), strict }))
}

#[test]
fn a_parked_lease_is_waited_out_and_is_nobodys() {
    let mut scene = Scene::new(STRICT);
    scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]).answer(10, held_by("hold/me", None, None), &[]);
    scene.wakes(401, &["acquire attempt 2 floor 0 by 901"]);
    scene.answer(410, won(7), &["promoted 7 until 1351", "leader me 7"]);
    scene.wakes(901, &["renew 7 by 1351"]);
    scene.answer(910, held_by("hold/other", None, None), &["demoted 7 lost", "leader none", "left"]);
    scene.wakes(1302, &["acquire attempt 3 floor 7 by 1802"]);
}

#[test]
fn a_lease_that_is_gone_before_its_time_is_given_up_in_so_many_words() {
    let mut scene = leading(STRICT);
    scene.wakes(500, &["renew 7 by 950"]);
    scene.answer(510, Ok(Answer::Vacant), &["demoted 7 lost", "leader none", "release 7 by 1010"]);
    scene.answer(520, Ok(Answer::Vacant), &["left", "acquire attempt 2 floor 7 by 1020"]);
}

#[test]
fn it_is_given_up_once_only_whatever_is_answered() {
    for result in [unknown(), refused(), misconfigured(), held("other", 8, 400)] {
        let mut scene = leading(STRICT);
        scene.wakes(500, &["renew 7 by 950"]);
        scene.answer(510, Ok(Answer::Vacant), &["demoted 7 lost", "leader none", "release 7 by 1010"]);
        let op = scene.machine.last_op;
        let mut out = Vec::new();
        let moment = Moment { at: Instant::from_millis(520), dice: 0.0 };
        scene.machine.handle(moment, Input::Answer { op, result: result.clone() }, &mut out);
        assert!(out.iter().any(|output| matches!(output, Output::Left { unreleased: None })), "{out:?}");
        let sent = |output: &Output| matches!(output, Output::Send { action: Action::Release { .. }, .. });
        assert!(!out.iter().any(sent), "{result:?}: {out:?}");
    }
}

#[test]
fn lead_work_returns_before_it_is_given_up() {
    let mut scene = leading_with_work(STRICT);
    scene.wakes(500, &["renew 7 by 950"]);
    scene.answer(510, Ok(Answer::Vacant), &["demoted 7 lost", "leader none"]);
    scene.at(600, Input::LeadReturned { token: 7 }, &["release 7 by 1100"]);
    scene.answer(605, Ok(Answer::Vacant), &["left", "acquire attempt 2 floor 7 by 1105"]);
}

#[test]
fn without_strict_there_is_nothing_to_give_up() {
    let mut scene = leading(TIMING);
    scene.wakes(500, &["renew 7 by 950"]);
    let again = "acquire attempt 2 floor 7 by 1010";
    scene.answer(510, Ok(Answer::Vacant), &["demoted 7 lost", "leader none", "left", again]);
}

#[test]
fn a_stop_gives_it_up_too() {
    let mut scene = leading_with_work(STRICT);
    scene.wakes(500, &["renew 7 by 950"]);
    scene.answer(510, Ok(Answer::Vacant), &["demoted 7 lost", "leader none"]);
    scene.at(520, Input::Stop, &[]);
    scene.at(600, Input::LeadReturned { token: 7 }, &["release 7 by 1100"]);
    scene.answer(605, Ok(Answer::Vacant), &["left", "stopped"]);
}

#[test]
fn a_leader_that_is_unlike_is_told_once() {
    let strict = |replicas, longest| Some(Strictness { replicas, longest });
    for (timing, theirs, told) in [
        (STRICT, strict(2, LONGEST), None),
        (STRICT, strict(1, LONGEST), Some("unlike other with Some(1) replicas seen by acquire")),
        (STRICT, strict(2, LONGEST * 2), Some("unlike other with Some(2) replicas seen by acquire")),
        (STRICT, None, Some("unlike other with None replicas seen by acquire")),
        (TIMING, strict(2, LONGEST), Some("unlike other with Some(2) replicas seen by acquire")),
        (TIMING, None, None),
    ] {
        let mut scene = Scene::new(timing);
        let lines: Vec<_> = told.into_iter().chain(["leader other 5"]).collect();
        scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
        scene.answer(10, held_by("other", Some(5), theirs), &lines);
        scene.wakes(401, &["acquire attempt 2 floor 5 by 901"]);
        scene.answer(410, held_by("other", Some(5), theirs), &[]);
    }
    // A Go instance keeps no term, and is waited out.
    let mut scene = Scene::new(STRICT);
    scene.wakes(0, &["acquire attempt 1 floor 0 by 500"]);
    scene.answer(10, held_by("go", None, None), &["leader go"]);
}
