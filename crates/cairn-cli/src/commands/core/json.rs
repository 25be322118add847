//! The answers as one JSON object, described field by field in `docs/book/reference/json.md`.

use cairn_analysis::heap::{Cost, Entry, Group, Names, Questions};
use cairn_format::recording::PcKind;
use cairn_memory::heap::{Block, Chunk, Damage, GlibcHeap, Holder, Near, NearPlace};
use cairn_memory::image::FileState;
use cairn_symbols::BuildId;
use serde::Serialize;

use super::USUAL_ENTRIES;
use super::answers::{Answers, Where};
use super::print::{DamageText, layout_name, state_name};
use crate::commands::options::ListOptions;

const SCHEMA: &str = "cairn.core/1";

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

#[derive(Serialize)]
pub(super) struct CoreJson {
    schema: &'static str,
    kind: &'static str,
    machine: Option<&'static str>,
    word_bits: u32,
    process: Option<u32>,
    command_line: String,
    signal: Option<u32>,
    fault_address: Option<String>,
    memory_bytes: u64,
    searched_bytes: u64,
    /// Missing or contradictory parts of the image.
    findings: Vec<String>,
    modules: Vec<CoreModuleJson>,
    blocks: u64,
    live_bytes: u64,
    freed_headers: u64,
    /// By stack, the most bytes first.
    stacks: Vec<CoreStackJson>,
    more_stacks: usize,
    functions: Vec<CoreFunctionJson>,
    damage: Vec<CoreDamageJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heap: Option<CoreHeapJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    at: Vec<CorePlaceJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    references: Vec<CoreReferencesJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaks: Option<CoreLeaksJson>,
    threads: Vec<CoreThreadJson>,
}

#[derive(Serialize)]
struct CoreModuleJson {
    path: String,
    start: String,
    end: String,
    build_id: Option<String>,
    /// `same`, `different`, `missing` or `unknown`.
    file: &'static str,
}

#[derive(Serialize)]
struct CoreStackJson {
    bytes: u64,
    blocks: u64,
    frames: Vec<CoreFrameJson>,
}

#[derive(Serialize)]
struct CoreFrameJson {
    /// None for a Python frame.
    address: Option<String>,
    module: Option<String>,
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    /// The missing part of a Python frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<&'static str>,
    /// True when the compiler put this function's body into the next frame's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    inlined: bool,
}

#[derive(Serialize)]
struct CoreFunctionJson {
    function: String,
    bytes: u64,
    blocks: u64,
}

#[derive(Serialize)]
struct CoreBlockJson {
    address: String,
    bytes: u64,
    layout: Option<&'static str>,
    frames: Vec<CoreFrameJson>,
}

#[derive(Serialize)]
struct CoreDamageJson {
    kind: &'static str,
    address: String,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<CoreBlockJson>,
}

#[derive(Serialize)]
struct CoreHeapJson {
    arenas: Vec<CoreArenaJson>,
    in_use_blocks: u64,
    in_use_bytes: u64,
    free_blocks: u64,
    free_bytes: u64,
    sizes: Vec<CoreSizeJson>,
    largest: Vec<CoreChunkJson>,
}

#[derive(Serialize)]
struct CoreArenaJson {
    address: String,
    is_main: bool,
    system_bytes: u64,
    top_bytes: u64,
}

#[derive(Serialize)]
struct CoreSizeJson {
    usable_bytes: u64,
    in_use: u64,
    free: u64,
}

#[derive(Serialize)]
struct CoreChunkJson {
    address: String,
    usable_bytes: u64,
    state: &'static str,
}

#[derive(Serialize)]
struct CorePlaceJson {
    address: String,
    /// `inside`, `annotation` or `behind`.
    relation: Option<&'static str>,
    /// Bytes into the block, in front of it, or past its end.
    distance: Option<u64>,
    block: Option<CoreBlockJson>,
    chunk: Option<CoreChunkJson>,
    memory: String,
    word: Option<String>,
}

#[derive(Serialize)]
struct CoreReferencesJson {
    start: String,
    end: String,
    found: Vec<CoreReferenceJson>,
    more: u64,
}

#[derive(Serialize)]
struct CoreReferenceJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    register: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    value: String,
    memory: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_block: Option<String>,
}

#[derive(Serialize)]
struct CoreLeaksJson {
    bytes: u64,
    blocks: u64,
    indirect_bytes: u64,
    indirect_blocks: u64,
    largest: Vec<CoreBlockJson>,
}

#[derive(Serialize)]
struct CoreThreadJson {
    thread: u32,
    name: String,
    signal: Option<u32>,
    registers: std::collections::BTreeMap<&'static str, String>,
    frames: Vec<CoreFrameJson>,
    /// Why there are no more frames; none where the stack was not asked for.
    end: Option<String>,
    /// Gaps in the Python frames.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// Makes the parts that have names.
struct Teller<'a, 'n> {
    answers: &'a Answers,
    names: &'a mut Names<'n>,
}

impl CoreJson {
    pub(super) fn new(
        answers: &Answers,
        questions: &mut Questions<'_>,
        names: &mut Names<'_>,
        list: ListOptions,
    ) -> Self {
        let about = &answers.about;
        let mut teller = Teller { answers, names };
        let by_stack = questions.top(Group::Stack, Cost::Leaked);
        let has_stacks = !answers.annotated.blocks().is_empty();
        let whole = questions.profile().totals.live_bytes;
        let held = |entry: &Entry| entry.sums.live_bytes;
        let shown = if has_stacks { list.shown(USUAL_ENTRIES, &by_stack, whole, held) } else { Vec::new() };
        let stacks = shown.into_iter().map(|entry| CoreStackJson {
            bytes: entry.sums.live_bytes,
            blocks: entry.sums.live_blocks,
            frames: entry.stacks.first().map_or_else(Vec::new, |&(stack, _)| teller.frames(stack)),
        });
        let stacks: Vec<CoreStackJson> = stacks.collect();
        let functions = if has_stacks { questions.top(Group::Function, Cost::Leaked) } else { Vec::new() };
        let functions = list.shown(USUAL_ENTRIES, &functions, whole, held).into_iter();
        let functions = functions.map(|entry| CoreFunctionJson {
            function: questions.names().function_of(entry.line).name.to_string(),
            bytes: entry.sums.live_bytes,
            blocks: entry.sums.live_blocks,
        });
        let functions = functions.collect();
        Self {
            schema: SCHEMA,
            kind: about.kind,
            machine: about.machine,
            word_bits: answers.machine.word_size.bits(),
            process: about.process,
            command_line: about.command_line.clone(),
            signal: about.signal,
            fault_address: about.fault_address.map(hex),
            memory_bytes: answers.dumped_bytes,
            searched_bytes: answers.annotated.scanned_bytes(),
            findings: answers.findings.iter().map(ToString::to_string).collect(),
            modules: modules(answers),
            blocks: answers.blocks().len() as u64,
            live_bytes: answers.blocks().iter().fold(0, |sum, block| sum.saturating_add(block.size_bytes)),
            freed_headers: answers.annotated.freed_count(),
            more_stacks: if has_stacks { by_stack.len() - stacks.len() } else { 0 },
            stacks,
            functions,
            damage: teller.damage(),
            heap: answers.heap.as_ref().map(|heap| heap_json(heap, list)),
            at: teller.places(),
            references: references(answers),
            leaks: teller.leaks(list),
            threads: teller.threads(),
        }
    }
}

fn modules(answers: &Answers) -> Vec<CoreModuleJson> {
    let module = |module: &cairn_memory::image::ImageModule| CoreModuleJson {
        path: module.path.to_string_lossy().into_owned(),
        start: module.range.start.to_string(),
        end: module.range.end.to_string(),
        build_id: (!module.build_id.is_empty()).then(|| BuildId::new(&module.build_id).to_string()),
        file: match module.file {
            FileState::Same(_) => "same",
            FileState::Different(_) => "different",
            FileState::Missing => "missing",
            _ => "unknown",
        },
    };
    answers.modules.iter().map(module).collect()
}

fn chunk_json(heap: &GlibcHeap, chunk: &Chunk) -> CoreChunkJson {
    let (user, usable_bytes) = heap.user_part(chunk);
    CoreChunkJson { address: hex(user), usable_bytes, state: state_name(chunk.state) }
}

fn heap_json(heap: &GlibcHeap, list: ListOptions) -> CoreHeapJson {
    let (in_use_blocks, in_use_bytes) = heap.sum(|state| state.is_in_use());
    let (free_blocks, free_bytes) = heap.sum(|state| !state.is_in_use());
    let mut largest: Vec<&Chunk> = heap.chunks().iter().filter(|chunk| chunk.state.is_in_use()).collect();
    largest.sort_by_key(|chunk| (std::cmp::Reverse(chunk.size_bytes), chunk.address));
    let arena = |arena: &cairn_memory::heap::Arena| CoreArenaJson {
        address: hex(arena.address),
        is_main: arena.is_main,
        system_bytes: arena.system_bytes,
        top_bytes: arena.top_bytes,
    };
    let size = |size: &cairn_memory::heap::SizeCount| CoreSizeJson {
        usable_bytes: size.usable_bytes,
        in_use: size.in_use,
        free: size.free,
    };
    let sizes = heap.sizes();
    let sizes =
        list.shown(USUAL_ENTRIES, &sizes, in_use_bytes, |size| size.in_use.saturating_mul(size.usable_bytes));
    let largest = list.shown(USUAL_ENTRIES, &largest, in_use_bytes, |chunk| heap.user_part(chunk).1);
    CoreHeapJson {
        arenas: heap.arenas().iter().map(arena).collect(),
        in_use_blocks,
        in_use_bytes,
        free_blocks,
        free_bytes,
        sizes: sizes.into_iter().map(size).collect(),
        largest: largest.into_iter().map(|chunk| chunk_json(heap, chunk)).collect(),
    }
}

fn memory_text(answers: &Answers, what: &Where) -> String {
    match what {
        Where::Nowhere => "none".to_owned(),
        Where::Module(index, offset) => {
            let path = answers.modules.get(*index).map(|module| module.path.to_string_lossy().into_owned());
            format!("{}+{offset:#x}", path.unwrap_or_default())
        }
        Where::Stack(thread) => format!("stack of thread {thread}"),
        Where::Heap => "heap".to_owned(),
        Where::Other(name) if name.is_empty() => "other".to_owned(),
        Where::Other(name) => name.clone(),
    }
}

fn references(answers: &Answers) -> Vec<CoreReferencesJson> {
    let reference = |(reference, near, what): &(cairn_memory::heap::Reference, Option<Near>, Where)| {
        let (register, address) = match reference.holder {
            Holder::Register { thread, name } => (Some(format!("{name} of thread {thread}")), None),
            Holder::Memory(at) => (None, Some(hex(at))),
        };
        CoreReferenceJson {
            register,
            address,
            value: hex(reference.value),
            memory: memory_text(answers, what),
            in_block: near.map(|near| hex(near.block.user_address)),
        }
    };
    let json = |references: &super::answers::ReferencesAnswer| CoreReferencesJson {
        start: hex(references.start),
        end: hex(references.end),
        found: references.found.iter().map(reference).collect(),
        more: references.more,
    };
    answers.references.iter().map(json).collect()
}

impl Teller<'_, '_> {
    fn frames(&mut self, stack: u32) -> Vec<CoreFrameJson> {
        self.names.find_stacks([stack]);
        let stacks = self.names.stacks();
        let mut frames = Vec::new();
        for index in stacks.addresses_of(stack) {
            let Some(address) = stacks.address(index) else { continue };
            let lines = self.names.at_address(index);
            for (number, &line) in lines.iter().enumerate() {
                let source = self.names.source_line(line);
                let function = self.names.function(source.function);
                let module = self.names.module_name(line);
                frames.push(CoreFrameJson {
                    address: (address.kind != PcKind::Interpreted).then(|| hex(address.absolute)),
                    module: (!module.is_empty()).then(|| module.to_owned()),
                    function: function.is_named.then(|| function.name.to_string()),
                    file: source.file.as_deref().map(str::to_owned),
                    line: source.line,
                    missing: self.answers.gap(address),
                    inlined: number + 1 < lines.len(),
                });
            }
        }
        frames
    }

    fn block(&mut self, block: &Block) -> CoreBlockJson {
        let stack = self.answers.stacks.numbers.get(block.stack as usize).copied().unwrap_or(0);
        CoreBlockJson {
            address: hex(block.user_address),
            bytes: block.size_bytes,
            layout: block.layout.map(layout_name),
            frames: if block.layout.is_some() { self.frames(stack) } else { Vec::new() },
        }
    }

    fn damage(&mut self) -> Vec<CoreDamageJson> {
        let answers = self.answers;
        let annotated = answers.damage.iter().map(|damage| CoreDamageJson {
            kind: match damage {
                Damage::TailOverwritten { .. } => "tail-overwritten",
                Damage::HeaderOverwritten { .. } => "header-overwritten",
                Damage::Overlap { .. } => "overlap",
                Damage::PastMemory { .. } => "past-memory",
                _ => "other",
            },
            address: hex(damage.address()),
            text: DamageText(damage).to_string(),
            block: Some(self.block(damage.block())),
        });
        let mut json: Vec<CoreDamageJson> = annotated.collect();
        for damage in answers.heap.iter().flat_map(GlibcHeap::damage) {
            let block =
                GlibcHeap::blame(damage, answers.annotated.blocks()).map(|(block, _)| self.block(&block));
            json.push(CoreDamageJson {
                kind: "heap",
                address: hex(damage.address()),
                text: damage.to_string(),
                block,
            });
        }
        json
    }

    fn places(&mut self) -> Vec<CorePlaceJson> {
        let answers = self.answers;
        let place = |place: &super::answers::PlaceAnswer| {
            let (relation, distance) = match place.near.map(|near| near.place) {
                Some(NearPlace::Inside(offset)) => (Some("inside"), Some(offset)),
                Some(NearPlace::InAnnotation(before)) => (Some("annotation"), Some(before)),
                Some(NearPlace::Behind(past)) => (Some("behind"), Some(past)),
                None => (None, None),
            };
            let chunk =
                answers.heap.as_ref().zip(place.chunk).map(|(heap, (chunk, ..))| chunk_json(heap, &chunk));
            CorePlaceJson {
                address: hex(place.address),
                relation,
                distance,
                block: place.near.map(|near| self.block(&near.block)),
                chunk,
                memory: memory_text(answers, &place.what),
                word: place.word.map(hex),
            }
        };
        answers.places.iter().map(place).collect()
    }

    fn leaks(&mut self, list: ListOptions) -> Option<CoreLeaksJson> {
        let leaks = self.answers.leaks.as_ref()?;
        let sum =
            |blocks: &[Block]| blocks.iter().fold(0_u64, |sum, block| sum.saturating_add(block.size_bytes));
        let mut largest = leaks.direct.clone();
        largest.sort_by_key(|block| (std::cmp::Reverse(block.size_bytes), block.user_address));
        let largest = list.shown(USUAL_ENTRIES, &largest, sum(&leaks.direct), |block| block.size_bytes);
        Some(CoreLeaksJson {
            bytes: sum(&leaks.direct),
            blocks: leaks.direct.len() as u64,
            indirect_bytes: sum(&leaks.indirect),
            indirect_blocks: leaks.indirect.len() as u64,
            largest: largest.into_iter().map(|block| self.block(block)).collect(),
        })
    }

    fn threads(&mut self) -> Vec<CoreThreadJson> {
        let answers = self.answers;
        let thread = |thread: &super::answers::ThreadAnswer| CoreThreadJson {
            thread: thread.thread.id,
            name: thread.thread.name.clone(),
            signal: thread.thread.signal,
            registers: thread.thread.registers.iter().map(|&(name, value)| (name, hex(value))).collect(),
            frames: self.frames(thread.stack),
            end: thread.stop.as_ref().map(ToString::to_string),
            notes: thread.notes.iter().map(ToString::to_string).collect(),
        };
        answers.threads.iter().map(thread).collect()
    }
}
