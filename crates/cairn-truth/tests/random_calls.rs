//! Random programs: captures equal libgcc's stacks after any sequence of calls, throws, jumps and
//! switches.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairn_truth::driver::{Following, Workplace};
use cairn_truth::report::Counter;

/// The environment variable that repeats one seed instead of a new one.
const SEED: &str = "CAIRN_TRUTH_SEED";

const BUILDS: &[(&str, &[&str])] =
    &[("O1", &["-O1"]), ("O2", &["-O2"]), ("frame-pointers", &["-O2", "-fno-omit-frame-pointer"])];

fn seed() -> u64 {
    match std::env::var(SEED) {
        Ok(text) => text.parse().unwrap(),
        // Four seeds are used for each run; whole millions are easy to read.
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() * 1_000_000,
    }
}

#[test]
fn captures_equal_libgcc_after_calls_throws_and_switches() {
    if !cairn_truth::driver::has_cpp_compiler() {
        return;
    }
    let workplace = Workplace::new("random-calls").unwrap();
    let seed = seed();
    for (build, flags) in BUILDS {
        let program = workplace.compile("random_calls.cpp", build, flags).unwrap();
        for (rounds, threads, following) in [
            (16, "0", Following::Usual),
            (8, "2", Following::Usual),
            (16, "0", Following::Early),
            (8, "2", Following::Early),
        ] {
            let mut command = Command::new(&program);
            command.args([&seed.to_string(), &rounds.to_string(), threads]);
            following.apply(&mut command);
            let ended = workplace.run(&mut command, Duration::from_secs(60)).unwrap();
            let report = &ended.report;
            let context =
                format!("{SEED}={seed} {build} {threads} {following:?}: {:?}: {report}", ended.status);
            assert!(ended.is_good(), "{context}");
            for counter in [Counter::Wrong, Counter::Failed, Counter::Lost] {
                assert_eq!(report.count(counter), 0, "{context}");
            }
            assert!(report.count(Counter::Stacks) > rounds * 300, "{context}");
            assert!(report.count(Counter::OtherWalks) > rounds, "{context}");
        }
    }
}
