//! A store of made-up hosts with known leaks and growth, for measurements and tests.
//!
//! Each service has a leak and a stack that grows with the second version, and neither is said
//! anywhere but in the [`Truth`] that is printed. All else is noise: stacks that go up and down, on
//! each host in its own way. One seed makes the same store.

use std::sync::Arc;

use arrow::array::{
    ArrayBuilder as _, ArrayRef, BinaryBuilder, Int64Array, Int64Builder, RecordBatch, StringBuilder,
};
use cairn_store::block::{Frame, Line, Module, ModuleId, Place, Process, Shape, ShapeFrame, Stack};
use cairn_store::{Block, DayOfService, Id, Store, Table, day_of};
use clap::Args;

use crate::error::FleetError;

/// Fill a new store with made-up hosts whose leaks are known
#[derive(Args)]
pub(crate) struct Generate {
    /// The directory of the store, new or empty
    store: String,

    /// Hosts
    #[arg(long, default_value_t = 10_000)]
    hosts: u32,

    /// Services, among which the hosts are divided
    #[arg(long, default_value_t = 20)]
    services: u32,

    /// Slices of ten minutes
    #[arg(long, default_value_t = 4)]
    slices: u32,

    /// Stacks of a service
    #[arg(long, default_value_t = 5000)]
    stacks: u32,

    /// Stacks that each host has
    #[arg(long, default_value_t = 250)]
    stacks_of_host: u32,

    /// Beginning of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const VERSIONS: [&str; 2] = ["1.4", "1.5"];
const SLICE_MS: i64 = 600_000;
/// The morning of 1 October 2026.
const START_MS: i64 = 1_790_841_600_000;
/// Frames of a stack.
const FRAMES: std::ops::Range<u32> = 8..24;

/// Bytes that the leak of a service adds to each process in each slice.
const LEAKED_BYTES: i64 = 64 << 10;
/// Bytes that the second version adds to each process.
const GROWN_BYTES: i64 = 2 << 20;

/// Makes one seed of several numbers, so that seeds of neighbours have nothing in common.
fn mixed(parts: [u64; 4]) -> u64 {
    parts.into_iter().fold(0, |sum, part| fastrand::Rng::with_seed(sum ^ part).u64(..))
}

/// The planted shapes of a service.
struct Truth {
    leak: Id,
    grown: Id,
}

impl Generate {
    pub(crate) async fn run(self) -> Result<u8, FleetError> {
        if self.services == 0 || self.hosts < self.services || self.stacks < self.stacks_of_host.max(8) {
            return Err(FleetError::usage("there must be a host for each service, and stacks for each host"));
        }
        let mut store = Store::create(&self.store).await?;
        for service in 0..self.services {
            let made = Service::make(&self, service);
            let (block, processes) = made.block();
            let days: Vec<DayOfService> =
                (0..self.slices).map(|slice| made.rows(&self, slice)).collect::<Result<_, _>>()?;
            store.append_rows(&block, &processes, &days).await?;
            let Truth { leak, grown } = made.truth;
            use std::io::Write as _;
            writeln!(std::io::stdout(), "{} leak {leak} grown {grown}", made.name)
                .map_err(|error| FleetError::new(error.to_string()))?;
        }
        Ok(0)
    }
}

/// A service and its hosts.
struct Service {
    name: String,
    number: u32,
    seed: u64,
    truth: Truth,
    /// By version: the stacks, sorted by identifier, each with its number.
    stacks: [Vec<(Id, u32)>; 2],
    rows: Vec<Stack>,
    shapes: Vec<Shape>,
    frames: Vec<Frame>,
    modules: Vec<Module>,
    hosts: Vec<Host>,
    leaking: u32,
    growing: u32,
}

struct Host {
    name: String,
    process: Id,
    version: usize,
    /// By stack: whether it has it.
    has: Vec<bool>,
}

impl Service {
    fn make(options: &Generate, number: u32) -> Self {
        let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(number));
        let mut random = fastrand::Rng::with_seed(seed);
        let name = format!("service-{number:02}");
        let program = format!("/srv/{name}/bin/{name}");
        let build_ids = VERSIONS.map(|version| {
            ModuleId::from(Id::of_content([name.as_bytes(), version.as_bytes()]).bytes().as_slice())
        });
        let functions = options.stacks.div_ceil(2).max(64);
        let function = |function: u32| format!("{}::handle_{function}", name.replace('-', "_"));
        let mut made = Self {
            name: name.clone(),
            number,
            seed,
            truth: Truth { leak: Id::default(), grown: Id::default() },
            stacks: [Vec::new(), Vec::new()],
            rows: Vec::new(),
            shapes: Vec::new(),
            frames: Vec::new(),
            modules: Vec::new(),
            hosts: Vec::new(),
            // Stacks that every host has are the first ones.
            leaking: random.u32(0..4),
            growing: 4 + random.u32(0..4),
        };
        for (version, build_id) in build_ids.iter().enumerate() {
            made.modules.push(Module {
                id: build_id.clone(),
                path: program.clone(),
                has_build_id: true,
                has_names: true,
            });
            for number in 0..functions {
                made.frames.push(Frame {
                    place: (build_id.clone(), Self::offset(version, number)),
                    lines: vec![Line {
                        function: Some(function(number)),
                        file: Some(format!("/src/{name}/part_{}.rs", number % 40)),
                        line: Some(i64::from(number % 900) + 1 + version as i64),
                        is_inlined: false,
                    }],
                });
            }
        }
        for stack in 0..options.stacks {
            let depth = random.u32(FRAMES);
            let path: Vec<u32> =
                (0..depth).map(|level| random.u32(0..(functions >> (level / 4)).max(8))).rev().collect();
            let frames: Vec<ShapeFrame> = path
                .iter()
                .map(|&frame| ShapeFrame {
                    function: Some(function(frame)),
                    module: name.clone(),
                    file: Some(format!("part_{}.rs", frame % 40)),
                })
                .collect();
            let shape = Shape::new(frames);
            let id_of_shape = shape.id;
            made.shapes.push(shape);
            for (version, build_id) in build_ids.iter().enumerate() {
                let frames: Vec<Place> =
                    path.iter().map(|&frame| (build_id.clone(), Self::offset(version, frame))).collect();
                let row = Stack::new(frames, Some(id_of_shape));
                made.stacks[version].push((row.id(), stack));
                made.rows.push(row);
            }
            if stack == made.leaking {
                made.truth.leak = id_of_shape;
            }
            if stack == made.growing {
                made.truth.grown = id_of_shape;
            }
        }
        made.stacks.iter_mut().for_each(|stacks| stacks.sort_unstable());
        let hosts = options.hosts / options.services;
        for host in 0..hosts {
            let name = format!("host-{:06}", number * hosts + host);
            let mut has = vec![false; options.stacks as usize];
            has.iter_mut().take(8).for_each(|has| *has = true);
            let mut left = options.stacks_of_host.saturating_sub(8);
            while left > 0 {
                // Most hosts have the first ones.
                let stack = (random.f64().powi(3) * f64::from(options.stacks)) as usize;
                if let Some(has @ false) = has.get_mut(stack) {
                    *has = true;
                    left -= 1;
                }
            }
            let process = Id::of_content([name.as_bytes(), b"process"]);
            made.hosts.push(Host { name, process, version: usize::from(host % 2 == 1), has });
        }
        made
    }

    fn offset(version: usize, function: u32) -> i64 {
        0x1000 + i64::from(function) * 0x40 + version as i64 * 0x18
    }

    fn block(&self) -> (Block, Vec<Process>) {
        let processes = self
            .hosts
            .iter()
            .map(|host| Process {
                id: host.process,
                service: self.name.clone(),
                version: VERSIONS[host.version].to_owned(),
                host: host.name.clone(),
                build_id: self.modules[host.version].id.to_vec(),
                command: format!("/srv/{0}/bin/{0}", self.name),
                labels: [("region".to_owned(), ["eu-west", "us-east"][self.number as usize % 2].to_owned())]
                    .into(),
                started_ms: START_MS - 3_600_000 * (1 - host.version as i64),
                source: "generated".to_owned(),
                ..Process::default()
            })
            .collect();
        let block = Block {
            sender: format!("generated/{}", self.name),
            number: 1,
            stacks: self.rows.clone(),
            shapes: self.shapes.clone(),
            frames: self.frames.clone(),
            modules: self.modules.clone(),
            ..Block::default()
        };
        (block, processes)
    }

    /// The samples of one slice, in the order of files.
    fn rows(&self, options: &Generate, slice: u32) -> Result<DayOfService, FleetError> {
        let rows = self.hosts.len() * options.stacks_of_host as usize;
        let end_ms = START_MS + SLICE_MS * i64::from(slice + 1);
        let (mut versions, mut hosts) = (StringBuilder::new(), StringBuilder::new());
        let (mut processes, mut stacks) = (BinaryBuilder::new(), BinaryBuilder::new());
        let mut counters: [Int64Builder; 9] = std::array::from_fn(|_| Int64Builder::with_capacity(rows));
        for (version, name) in VERSIONS.iter().enumerate() {
            for &(id, stack) in &self.stacks[version] {
                for (at, host) in self.hosts.iter().enumerate() {
                    if host.version != version || !host.has[stack as usize] {
                        continue;
                    }
                    versions.append_value(name);
                    hosts.append_value(&host.name);
                    processes.append_value(host.process.bytes());
                    stacks.append_value(id.bytes());
                    for (column, value) in
                        counters.iter_mut().zip(self.counters(version, stack, at as u64, slice))
                    {
                        column.append_value(value);
                    }
                }
            }
        }
        let count = versions.len();
        let day = day_of(end_ms);
        let same = |text: &str| {
            Arc::new(std::iter::repeat_n(Some(text), count).collect::<arrow::array::StringArray>())
                as ArrayRef
        };
        let number = |value: i64| Arc::new(Int64Array::from_value(value, count)) as ArrayRef;
        let mut columns: Vec<ArrayRef> = vec![
            same(&day),
            same(&self.name),
            Arc::new(versions.finish()),
            Arc::new(hosts.finish()),
            Arc::new(processes.finish()),
            number(end_ms),
            number(SLICE_MS),
            Arc::new(stacks.finish()),
        ];
        columns.extend(counters.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
        columns.push(Arc::new(Int64Array::new_null(count)));
        let rows = RecordBatch::try_new(Table::Sample.schema(), columns)?;
        Ok(DayOfService { day, service: self.name.clone(), rows })
    }

    /// The counters of a stack of a host in a slice.
    fn counters(&self, version: usize, stack: u32, host: u64, slice: u32) -> [i64; 9] {
        // The level and the size of blocks are the stack's, a part is the host's and the slice's.
        let mut of_stack = fastrand::Rng::with_seed(mixed([self.seed, u64::from(stack), 0, 0]));
        let block = 16 << of_stack.u32(0..8);
        let is_planted = stack == self.leaking || stack == self.growing;
        let (level, swing) = (1_i64 << of_stack.u32(4..13), of_stack.i64(1..60));
        let (level, swing) = if is_planted { (64, 10) } else { (level, swing) };
        let mut of_slice =
            fastrand::Rng::with_seed(mixed([self.seed, u64::from(stack), host + 1, u64::from(slice) + 1]));
        let mut live_blocks = level + level * of_slice.i64(-swing..=swing) / 100;
        if stack == self.leaking {
            live_blocks += (i64::from(slice) + 1) * (LEAKED_BYTES / block);
        }
        if stack == self.growing && version == 1 {
            live_blocks += GROWN_BYTES / block;
        }
        let alloc_blocks = live_blocks / 2 + of_slice.i64(0..=level);
        let freed_blocks = alloc_blocks - of_slice.i64(0..=alloc_blocks.min(8));
        let peak_blocks = live_blocks + of_slice.i64(0..=level / 4);
        [
            live_blocks * block,
            live_blocks,
            alloc_blocks * block,
            alloc_blocks,
            freed_blocks * block,
            freed_blocks,
            alloc_blocks / 8,
            peak_blocks * block,
            peak_blocks,
        ]
    }
}
