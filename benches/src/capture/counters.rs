//! How captures at every malloc of real programs are answered, counted by a build of cairn-capture
//! with the feature `counters`.

use crate::capture::at_malloc::{self, HookedProgram, Report};

/// A column: its title, the counters that are added, and those that they are divided by.
type Column = (&'static str, &'static [&'static str], &'static [&'static str]);

const CAPTURES: &[&str] = &["captures"];

/// Statistics of the programs, which do not depend on cairn.
const STACKS: &[Column] = &[
    ("frames each", &["frames"], CAPTURES),
    ("frames that differ from the stack before", &["changed"], CAPTURES),
    ("share of new stacks", &["unique"], CAPTURES),
    ("bytes a stack", &["memory_bytes"], &["unique"]),
];

const ANSWERS: &[Column] = &[
    ("record held", &["held_at_once"], CAPTURES),
    ("held after binding", &["held_after_binding"], CAPTURES),
    ("followed", &["followed"], CAPTURES),
    ("not followed", &["not_followed"], CAPTURES),
    ("walked", &["walked"], CAPTURES),
    ("whole walk", &["whole_walks"], CAPTURES),
    ("another than expected", &["other_than_expected"], CAPTURES),
    ("records", &["records"], CAPTURES),
    ("over others", &["records_replaced"], CAPTURES),
    ("shadows", &["shadows"], CAPTURES),
];

const STEPS: &[Column] = &[
    ("steps, walked", &["walked_steps"], &["walked"]),
    ("steps, followed", &["followed_steps"], &["followed"]),
    ("walks of 1, 2", &["walks_of_2"], &["walked"]),
    ("to 4", &["walks_of_4"], &["walked"]),
    ("to 8", &["walks_of_8"], &["walked"]),
    ("to 16", &["walks_of_16"], &["walked"]),
    ("more", &["walks_of_more"], &["walked"]),
    ("frames compared to meet", &["meet_comparisons"], CAPTURES),
    ("frames written", &["shadow_frames"], CAPTURES),
    ("frames copied", &["copied_frames"], CAPTURES),
];

const LOOK_UPS: &[Column] = &[
    ("addresses not in the cache", &["uncached_addresses"], CAPTURES),
    ("new addresses", &["new_addresses"], CAPTURES),
    ("children in the next word", &["next_words"], CAPTURES),
    ("children in the index", &["index_lookups"], CAPTURES),
    ("tables searched", &["index_tables"], CAPTURES),
    ("buckets read", &["index_buckets"], CAPTURES),
    ("new segments", &["new_segments"], CAPTURES),
];

pub(crate) fn run(only: &[&str]) -> Result<(), String> {
    let hook = at_malloc::build_hook(&["--features", "counters"])?;
    let mut reports = Vec::new();
    for program in at_malloc::programs(only) {
        match at_malloc::start(&hook, &program, "cairn-count") {
            Ok(report) => reports.push((program, report)),
            Err(why) => eprintln!("{}: {why}", program.name),
        }
    }
    println!("The figures are per capture, but for steps and lengths, which are per walk.\n");
    for columns in [STACKS, ANSWERS, STEPS, LOOK_UPS] {
        print_table(columns, &reports)?;
    }
    Ok(())
}

fn print_table(columns: &[Column], reports: &[(HookedProgram, Report)]) -> Result<(), String> {
    let titles: Vec<&str> = columns.iter().map(|(title, ..)| *title).collect();
    println!("| program | captures | different stacks | {} |", titles.join(" | "));
    println!("|---|---:|---:|{}", "---:|".repeat(titles.len()));
    for (program, report) in reports {
        let mut cells = Vec::new();
        for (_, above, below) in columns {
            let sum = |names: &[&str]| names.iter().map(|name| report.value(name)).sum::<Result<f64, _>>();
            let (above, below) = (sum(above)?, sum(below)?);
            cells.push(if below == 0.0 { "-".to_owned() } else { format!("{:.4}", above / below) });
        }
        let (captures, unique) = (report.value("captures")?, report.value("unique")?);
        println!("| {} | {captures:.0} | {unique:.0} | {} |", program.name, cells.join(" | "));
    }
    println!();
    Ok(())
}
