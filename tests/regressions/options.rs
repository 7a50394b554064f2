//! Options that cannot be meant.

use taskrunner::election::{Elector, ErrorKind, MemoryStore};

use super::leads;

/// B84: an empty id made everybody the holder of what nobody held.
#[test]
fn an_instance_without_a_name_of_its_own_is_refused_only_if_it_was_to_have_one() {
    let store = MemoryStore::new();
    let builder = || Elector::builder(store.clone(), "named");
    for name in ["", "\n", &"n".repeat(257)] {
        let error = builder().name(name).start().expect_err("no name");
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains(&format!("{} bytes", name.len())), "{error}");
    }
    // Without one its id is random, and of the same name there may be many.
    let nameless = [builder(), builder()].map(|builder| builder.start().expect("good options"));
    let namesakes = [builder(), builder()].map(|builder| builder.name("web").start().expect("good options"));
    let mut ids: Vec<_> = nameless.iter().chain(&namesakes).map(Elector::id).collect();
    assert!(ids.iter().all(|id| id.len() >= 32), "{ids:?}");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4, "{ids:?}");
    assert!(namesakes.iter().all(|elector| elector.id().starts_with("web/")));
    // Nobody's step down or stop ends another one's term.
    let leader = nameless
        .iter()
        .chain(&namesakes)
        .find(|elector| elector.wait_for_leadership(super::MS * 100).is_ok());
    let leadership = leads(leader.expect("one of the four leads"));
    for other in nameless.iter().chain(&namesakes).filter(|other| Some(other.id()) != leader.map(Elector::id))
    {
        other.step_down(super::MS).expect("it has nothing to give up");
        other.stop().expect("it has nothing to release");
    }
    assert!(leadership.is_valid());
}
