//! The blocks in a core file or minidump, as a heap of one moment.

use std::path::Path;

use cairn_memory::heap::{Annotated, Block, FindOptions, GlibcHeap};
use cairn_memory::image::{FileState, Image, ImageError, ImageModule, OpenOptions};
use cairn_symbols::SymbolizerOptions;

use super::{Question, SourceError, SourceOptions};
use crate::heap::{About, CoreStacks, Cost, HeapRead, ModuleNames, Scope, Stacks, Unfreed};

/// The blocks that a program held when its memory was dumped.
#[derive(Debug)]
pub struct ImageHeap {
    stacks: CoreStacks,
    blocks: Vec<Block>,
    modules: Vec<ImageModule>,
    command: Vec<String>,
    process: u32,
    findings: Vec<String>,
}

/// Note of every answer from an image.
const ONE_MOMENT: &str = "an image of memory has the blocks that were alive, and nothing of those before: what it shows as peak and allocated is the same blocks";

impl ImageHeap {
    /// Opens a core file or minidump, compressed or not; `None` for a file of another kind.
    pub(super) fn open(path: &Path, options: &SourceOptions) -> Result<Option<Self>, SourceError> {
        let mut image_options = OpenOptions::default();
        image_options.unpack_limit_bytes = options.max_unpacked_bytes;
        if let Some(root) = &options.root {
            image_options.root.clone_from(root);
        }
        let image = match Image::open(path, &image_options) {
            Ok(image) => image,
            Err(ImageError::NotAnImage { .. }) => return Ok(None),
            Err(error) => return Err(SourceError::import(path, options, Box::new(error))),
        };
        Self::of(&image).map(Some).ok_or_else(|| SourceError::unusable(path, options, Self::NO_BLOCKS))
    }

    /// The reason why an image without blocks is no heap.
    pub const NO_BLOCKS: &'static str =
        "neither annotated blocks nor a heap of glibc's malloc in it; there is nothing to count";

    /// Finds the blocks of an image; `None` when it has none.
    #[must_use]
    pub fn of(image: &Image) -> Option<Self> {
        Self::find(image, &FindOptions::default())
    }

    /// Finds the blocks of an image in these layouts; `None` when it has none.
    #[must_use]
    pub fn find(image: &Image, layouts: &FindOptions) -> Option<Self> {
        let annotated = Annotated::find(image, layouts);
        let mut findings: Vec<String> = image.findings().iter().map(ToString::to_string).collect();
        let mut blocks = annotated.blocks().to_vec();
        if blocks.is_empty() {
            blocks = GlibcHeap::find(image).map(|heap| heap.blocks()).unwrap_or_default();
            if blocks.is_empty() {
                return None;
            }
            let why = "its blocks are those of glibc's malloc, which does not note who allocated them; `cairn heap \
                       --annotate` does";
            findings.push(why.to_owned());
        }
        let about = image.about();
        let words = if about.command_line.is_empty() { &about.name } else { &about.command_line };
        Some(Self {
            stacks: CoreStacks::new(image, annotated.stacks(), &[], &[]),
            blocks,
            modules: image.modules().to_vec(),
            command: words.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect(),
            process: about.process.unwrap_or(0),
            findings,
        })
    }

    /// The blocks.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The number of a block's stack among [`stacks`](Self::stacks).
    #[must_use]
    pub fn stack_of(&self, block: &Block) -> u32 {
        self.stacks.number_of(block)
    }

    /// The stacks that allocated the blocks.
    #[must_use]
    pub fn stacks(&self) -> &Stacks {
        &self.stacks.stacks
    }

    pub(super) fn names(&self, options: SymbolizerOptions, allows_mismatch: bool) -> ModuleNames {
        names_of_image(&self.stacks.stacks, &self.modules, options, allows_mismatch)
    }

    pub(super) fn about(&self) -> About {
        About {
            command: self.command.clone(),
            process: self.process,
            lasted_nanos: None,
            unfreed: Unfreed::Alive,
            findings: self.findings.iter().cloned().chain([ONE_MOMENT.to_owned()]).collect(),
            notes: vec![ONE_MOMENT.to_owned()],
            ..About::default()
        }
    }

    pub(super) fn read(&self, scope: Scope) -> HeapRead {
        let profile = self.stacks.profile_in(&self.blocks, scope);
        HeapRead::of_sums(profile, 0, Vec::new())
    }

    /// Returns the notes for a reader of the sums.
    pub(super) fn findings(&self) -> &[String] {
        &self.findings
    }

    /// Returns why an image cannot answer a question; `None` if it can.
    ///
    /// ```
    /// use cairn_analysis::heap::Cost;
    /// use cairn_analysis::source::{ImageHeap, Question};
    ///
    /// assert!(ImageHeap::refusal(Question::Cost(Cost::Leaked)).is_none());
    /// assert!(ImageHeap::refusal(Question::Lifetimes).is_some());
    /// ```
    #[must_use]
    pub const fn refusal(question: Question) -> Option<&'static str> {
        match question {
            Question::Cost(Cost::Leaked) | Question::Sizes => None,
            Question::Cost(_) => Some(
                "an image of memory has the blocks that were alive, and nothing of those before; ask with --cost leaked",
            ),
            Question::Threads => Some("an image of memory does not say which thread allocated a block"),
            Question::Lifetimes => Some("an image of memory does not say when a block was allocated"),
            Question::Times | Question::PeakTime => Some(
                "an image of memory is one moment; leave the times out, or record the program with `cairn heap`",
            ),
        }
    }
}

/// Names of the stacks in an image: of no module whose build is not known, unless
/// `allows_mismatch`.
#[must_use]
pub fn names_of_image(
    stacks: &Stacks,
    modules: &[ImageModule],
    options: SymbolizerOptions,
    allows_mismatch: bool,
) -> ModuleNames {
    let names = ModuleNames::of(stacks, options);
    if allows_mismatch {
        return names;
    }
    let modules = modules.iter().enumerate();
    names.without(modules.filter(|(_, module)| is_unsure(module)).map(|(index, _)| index))
}

/// True when any build of a module may have run.
///
/// The names in the file on disk may be those of other functions.
fn is_unsure(module: &ImageModule) -> bool {
    !module.is_identified || module.build_id.is_empty() && matches!(module.file, FileState::Different(_))
}
