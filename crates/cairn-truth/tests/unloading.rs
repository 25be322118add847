//! A module is loaded at the address of another one, 200 times: its stacks are right each time, and
//! have their own numbers.

use std::process::Command;
use std::time::Duration;

use cairn_truth::driver::{Following, Workplace};
use cairn_truth::report::Counter;

#[test]
fn module_at_reused_address_has_its_own_stacks() {
    let workplace = Workplace::new("unloading").unwrap();
    let program = workplace.compile("unload.c", "unload", &["-O2", "-rdynamic"]).unwrap();
    let libraries = ["400", "600"].map(|frame| {
        let flags = ["-O2", "-shared", "-fPIC", &format!("-DFRAME={frame}")];
        workplace.compile("module.c", &format!("module{frame}.so"), &flags).unwrap()
    });
    let runs =
        ["0", "2"].into_iter().flat_map(|threads| ["announced", "interposed"].map(|way| (threads, way)));
    for ((threads, way), following) in runs.flat_map(|run| Following::ALL.map(|following| (run, following))) {
        let mut command = Command::new(&program);
        command.args(&libraries).args([threads, way]);
        following.apply(&mut command);
        let ended = workplace.run(&mut command, Duration::from_secs(60)).unwrap();
        let report = &ended.report;
        assert!(ended.is_good(), "{threads} {way} {following:?}: {:?}: {report}", ended.status);
        for counter in [Counter::Wrong, Counter::Failed, Counter::Lost] {
            assert_eq!(report.count(counter), 0, "{threads} {way} {following:?}: {report}");
        }
        assert!(report.count(Counter::OtherWalks) >= 600, "{report}");
    }
}
