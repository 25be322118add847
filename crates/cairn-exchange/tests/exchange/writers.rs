//! Checks files of each format with parsers independent of the writers.

use std::collections::BTreeSet;
use std::io::{self, Write};

use cairn_exchange::target::{Choice, MOST_BLOCKS, Rows};
use cairn_exchange::{ExchangeError, Profile, Target, write};
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use prost::Message;
use serde_json::Value;

use crate::subject::{FRAMES, deep, export, opened, profile_of, program, recorded, try_export, with_subject};

/// Builds a heap with all shapes and names, some blocks freed, on two threads.
fn heap() -> cairn_analysis::heap::HeapRecording {
    let shape: Vec<(usize, usize)> = (0..60).map(|index| (index * 5 / 3, index)).collect();
    let events: Vec<(usize, u64, u32)> = (0..300)
        .map(|index| (index * 13, if index % 4 == 3 { 0 } else { 1 + index as u64 % 90 }, index as u32))
        .collect();
    recorded(&shape, &events)
}

fn total(profile: &Profile, column: &str) -> u64 {
    profile.total(profile.column(column).expect("a column of heaps"))
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

fn sum(values: &Value) -> i64 {
    values.as_array().expect("a list").iter().map(|value| value.as_i64().expect("a number")).sum()
}

#[test]
fn lost_and_empty_stacks_are_exported() {
    let heap = recorded(&[], &[(0, 10, 0), (1, 20, 0)]);
    let profile = profile_of(&heap);
    let names: BTreeSet<&str> = profile
        .samples
        .iter()
        .flat_map(|sample| profile.lines_of(sample.stack))
        .map(|(line, _)| profile.function_name(line))
        .collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["[no stack]", "[stack was lost]"]);
    for target in Target::ALL {
        let text = String::from_utf8_lossy(&export(target, &heap)).into_owned();
        let is_packed = matches!(target, Target::Pprof | Target::Heaptrack);
        assert!(is_packed || text.contains("[stack was lost]"), "{target:?}: {text}");
    }
}

#[test]
fn speedscope_has_all_columns() {
    let (heap, profile) = (heap(), profile_of(&heap()));
    let file = json(&export(Target::Speedscope, &heap));
    let profiles = file["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), profile.columns.len());
    for (index, exported) in profiles.iter().enumerate() {
        assert_eq!(sum(&exported["weights"]) as u64, profile.total(index), "{}", exported["name"]);
        assert_eq!(
            exported["samples"].as_array().unwrap().len(),
            exported["weights"].as_array().unwrap().len()
        );
        assert_eq!(exported["endValue"].as_u64(), Some(profile.total(index)));
    }
    let frames: BTreeSet<&str> = file["shared"]["frames"]
        .as_array()
        .unwrap()
        .iter()
        .map(|frame| frame["name"].as_str().unwrap())
        .collect();
    assert!(FRAMES.iter().flat_map(|names| names.iter()).all(|name| frames.contains(name)), "{frames:?}");
}

#[test]
fn heapprofile_is_a_tree_of_one_column() {
    let (heap, profile) = (heap(), profile_of(&heap()));
    let file = json(&export(Target::Heapprofile, &heap));
    let (mut open, mut sum, mut ids) = (vec![&file["head"]], 0, BTreeSet::new());
    while let Some(node) = open.pop() {
        sum += node["selfSize"].as_u64().unwrap();
        assert!(ids.insert(node["id"].as_u64().unwrap()));
        assert!(node["callFrame"]["functionName"].is_string());
        open.extend(node["children"].as_array().unwrap());
    }
    assert_eq!(sum, total(&profile, "peak_space"));
}

#[test]
fn folded_lines_can_be_split_again() {
    let (heap, profile) = (heap(), profile_of(&heap()));
    let text = String::from_utf8(export(Target::Folded, &heap)).unwrap();
    let mut sum = 0;
    for line in text.lines() {
        let (stack, value) = line.rsplit_once(' ').unwrap();
        sum += value.parse::<u64>().unwrap();
        assert!(stack.split(';').all(|name| !name.is_empty()), "{line}");
    }
    assert_eq!(sum, total(&profile, "peak_space"));
    assert!(text.contains("core::array::<impl [T: 4]>::map"), "{text}");
}

#[test]
fn dhat_frame_lists_are_unique() {
    let (heap, profile) = (heap(), profile_of(&heap()));
    let file = json(&export(Target::Dhat, &heap));
    let points = file["pps"].as_array().unwrap();
    let lists: BTreeSet<String> = points.iter().map(|point| point["fs"].to_string()).collect();
    assert_eq!(lists.len(), points.len());
    let texts: BTreeSet<String> = file["ftbl"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(texts.len(), file["ftbl"].as_array().unwrap().len());
    let columns = [
        ("tbk", "alloc_objects"),
        ("tb", "alloc_space"),
        ("ebk", "inuse_objects"),
        ("eb", "inuse_space"),
        ("gbk", "peak_objects"),
        ("gb", "peak_space"),
    ];
    for (key, column) in columns {
        let sum: u64 = points.iter().map(|point| point[key].as_u64().unwrap()).sum();
        assert_eq!(sum, total(&profile, column), "{column}");
    }
    let most = |point: &Value, key: &str| point[key].as_u64().unwrap();
    assert!(
        points
            .iter()
            .all(|point| most(point, "mb") >= most(point, "gb") && most(point, "mb") >= most(point, "eb"))
    );
}

#[test]
fn firefox_has_every_event_and_the_peak() {
    let (heap, profile) = (heap(), profile_of(&heap()));
    let file = json(&export(Target::Firefox, &heap));
    let allocations = &file["threads"][0]["nativeAllocations"];
    let weights = allocations["weight"].as_array().unwrap();
    let grown: i64 = weights.iter().map(|weight| weight.as_i64().unwrap().max(0)).sum();
    assert_eq!(grown as u64, total(&profile, "alloc_space"));
    assert_eq!(sum(&allocations["weight"]) as u64, total(&profile, "inuse_space"));
    let track =
        file["counters"].as_array().unwrap().iter().find(|counter| counter["name"] == "malloc").unwrap();
    let counts = track["samples"]["count"].as_array().unwrap().iter().map(|count| count.as_f64().unwrap());
    let held: Vec<f64> = counts
        .scan(0.0, |held, change| {
            *held += change;
            Some(*held)
        })
        .collect();
    assert_eq!(held.iter().copied().fold(0.0, f64::max), total(&profile, "peak_space") as f64);
    assert_eq!(held.last().copied(), Some(total(&profile, "inuse_space") as f64));
}

#[test]
fn firefox_omits_the_shortest_lives_above_a_limit() {
    let heap = heap();
    let written = |most_blocks| {
        with_subject(&heap, |subject| {
            let mut bytes = Vec::new();
            let choice = Choice { column: 0, rows: Rows::Stacks, most_blocks, compression: None };
            let losses = write(Target::Firefox, subject, choice, &mut bytes).unwrap().losses;
            let weights = json(&bytes)["threads"][0]["nativeAllocations"]["weight"].clone();
            let allocations = weights.as_array().unwrap().iter().filter(|weight| weight.as_i64() > Some(0));
            (allocations.count() as u64, losses.join("\n"))
        })
    };
    let (all, losses) = written(u64::MAX);
    let whole = profile_of(&heap);
    assert!(all == total(&whole, "alloc_objects") && !losses.contains("omitted"), "{all}: {losses}");
    let (some, losses) = written(all - 10);
    assert!(some <= all - 10 && some >= total(&whole, "inuse_objects"), "{some} of {all}");
    assert!(losses.contains("omitted") && losses.contains("--full writes all"), "{losses}");
}

#[test]
fn otlp_decodes() {
    let (heap, profile) = (heap(), profile_of(&heap()));
    let file = ProfilesData::decode(&export(Target::Otlp, &heap)[..]).unwrap();
    let dictionary = file.dictionary.unwrap();
    let profiles = &file.resource_profiles[0].scope_profiles[0].profiles;
    for (index, exported) in profiles.iter().enumerate() {
        let name = &dictionary.string_table[exported.sample_type.unwrap().type_strindex as usize];
        assert_eq!(**name, *profile.columns[index].name);
        let sum: i64 = exported.samples.iter().flat_map(|sample| &sample.values).sum();
        assert_eq!(sum as u64, profile.total(index));
        for sample in &exported.samples {
            let stack = &dictionary.stack_table[sample.stack_index as usize];
            let known = |&location: &i32| (location as usize) < dictionary.location_table.len();
            assert!(!stack.location_indices.is_empty() && stack.location_indices.iter().all(known));
        }
    }
    assert_eq!(profiles.len(), profile.columns.len());
}

#[test]
fn tables_are_equal_in_csv_and_json() {
    let heap = heap();
    let all = [
        Rows::Stacks,
        Rows::Functions,
        Rows::Lines,
        Rows::Modules,
        Rows::Threads,
        Rows::Sizes,
        Rows::Lifetimes,
        Rows::Timeline,
    ];
    with_subject(&heap, |subject| {
        for rows in all {
            let bytes = |target| {
                let mut bytes = Vec::new();
                write(
                    target,
                    subject,
                    Choice { column: 0, rows, most_blocks: MOST_BLOCKS, compression: None },
                    &mut bytes,
                )
                .unwrap();
                bytes
            };
            let csv = bytes(Target::Csv);
            let mut reader = csv::Reader::from_reader(&csv[..]);
            let header = reader.headers().unwrap().clone();
            let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
            let lines = String::from_utf8(bytes(Target::JsonLines)).unwrap();
            assert_eq!(lines.lines().count(), records.len(), "{rows:?}");
            assert!(!records.is_empty(), "{rows:?}");
            for (line, record) in lines.lines().zip(&records) {
                let object = json(line.as_bytes());
                for (name, cell) in header.iter().zip(record) {
                    let exported =
                        object[name].as_str().map_or_else(|| object[name].to_string(), str::to_owned);
                    // Failed with: a formula that a spreadsheet would evaluate.
                    let is_formula = object[name].is_string() && exported.starts_with(['=', '+', '-', '@']);
                    let exported = if is_formula { format!("'{exported}") } else { exported };
                    assert_eq!(exported, cell, "{rows:?} {name}");
                }
            }
            if let Some(column) = header.iter().position(|name| name == "alloc_space") {
                let sum: u64 = records.iter().map(|record| record[column].parse::<u64>().unwrap()).sum();
                assert_eq!(sum, total(subject.profile, "alloc_space"), "{rows:?}");
            }
        }
    });
}

#[test]
fn deep_recursion_is_exported_to_every_format() {
    let heap = deep(100_000);
    let profile = profile_of(&heap);
    assert_eq!(profile.stacks.len(), 100_000);
    for target in Target::ALL {
        assert!(export(target, &heap).len() > 1000, "{target:?}");
    }
}

/// Discards bytes, and records the largest write.
#[derive(Default)]
struct InPieces {
    whole_bytes: usize,
    most_bytes: usize,
}

impl Write for InPieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.whole_bytes += bytes.len();
        self.most_bytes = self.most_bytes.max(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn deep_recursion_is_written_in_pieces() {
    let shape: Vec<(usize, usize)> = (0..1100).map(|level| (level + 1, level)).collect();
    let events: Vec<(usize, u64, u32)> = (0..1100).map(|level| (level + 2, 8, 0)).collect();
    let heap = recorded(&shape, &events);
    with_subject(&heap, |subject| {
        let depth =
            subject.profile.samples.iter().map(|sample| subject.profile.locations_of(sample.stack).count());
        let locations: usize = depth.sum();
        assert!(locations > 600_000, "{locations}");
        for target in [Target::Pprof, Target::Otlp] {
            let mut output = InPieces::default();
            let choice = Choice {
                column: subject.profile.main_column,
                rows: Rows::Stacks,
                most_blocks: MOST_BLOCKS,
                compression: None,
            };
            write(target, subject, choice, &mut output).unwrap();
            assert!(output.most_bytes < locations / 2, "{target:?}: {}", output.most_bytes);
            // Only pprof is compressed.
            assert!(
                target == Target::Pprof || output.whole_bytes > locations,
                "{target:?}: {}",
                output.whole_bytes
            );
        }
    });
}

#[test]
fn samples_are_refused_by_formats_of_single_blocks() {
    let (mut program, stacks) = program(&[(0, 0)]);
    program.spool.facts(&[("sample_bytes", "1000")]);
    for _ in 0..10 {
        program.counter += 3_000_000;
        program.alloc(1, 100, stacks[2]);
    }
    let heap = opened(program);
    for target in Target::ALL {
        let outcome = try_export(target, &heap);
        if matches!(target, Target::Firefox | Target::Heaptrack | Target::Dhat) {
            let error = outcome.unwrap_err();
            assert!(matches!(error, ExchangeError::CannotHold { .. }), "{error}");
            assert!(error.to_string().contains("sampled"), "{error}");
        } else {
            assert!(outcome.is_ok(), "{target:?}");
        }
    }
}
