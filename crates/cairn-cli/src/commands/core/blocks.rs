//! The blocks in a core file as sums by stack, for commands that compare heaps.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use cairn_analysis::heap::CoreStacks;
use cairn_analysis::heap::{HeapProfile, ModuleNames, Scope, Stacks};
use cairn_exchange::import::Kind;
use cairn_memory::heap::{Annotated, Block, FindOptions, GlibcHeap};
use cairn_memory::image::{Image, ImageError, ImageModule, OpenOptions};
use cairn_symbols::SymbolizerOptions;

use super::module_names;

/// The blocks that a program held when its memory was dumped.
pub(crate) struct CoreBlocks {
    stacks: CoreStacks,
    blocks: Vec<Block>,
    modules: Vec<ImageModule>,
    findings: Vec<String>,
}

impl CoreBlocks {
    /// Opens a core file or minidump, compressed or not; `None` for a file of another kind.
    ///
    /// # Errors
    ///
    /// When the file is an image of memory that cannot be read, or holds no blocks.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> io::Result<Option<Self>> {
        if !may_be_image(path) {
            return Ok(None);
        }
        let image = match Image::open(path, options) {
            Ok(image) => image,
            Err(ImageError::NotAnImage { .. }) => return Ok(None),
            Err(error) => return Err(io::Error::other(error)),
        };
        let annotated = Annotated::find(&image, &FindOptions::default());
        let mut findings: Vec<String> = image.findings().iter().map(ToString::to_string).collect();
        let mut blocks = annotated.blocks().to_vec();
        if blocks.is_empty() {
            blocks = GlibcHeap::find(&image).map(|heap| heap.blocks()).unwrap_or_default();
            if blocks.is_empty() {
                let why = "neither annotated blocks nor a heap of glibc's malloc in it; there is nothing to compare";
                return Err(io::Error::other(format!("{}: {why}", path.display())));
            }
            findings.push(
                "its blocks are those of glibc's malloc, which does not note who allocated them; `cairn heap \
                 --annotate` does"
                    .to_owned(),
            );
        }
        let stacks = CoreStacks::new(&image, annotated.stacks(), &[]);
        Ok(Some(Self { stacks, blocks, modules: image.modules().to_vec(), findings }))
    }

    /// The stacks that allocated the blocks.
    pub(crate) fn stacks(&self) -> &Stacks {
        &self.stacks.stacks
    }

    /// Names from symbol files.
    pub(crate) fn names(&self, options: SymbolizerOptions, allows_mismatch: bool) -> ModuleNames {
        module_names(&self.stacks.stacks, &self.modules, options, allows_mismatch)
    }

    /// The sums of the blocks in a scope.
    pub(crate) fn profile(&self, scope: Scope) -> HeapProfile {
        self.stacks.profile_in(&self.blocks, scope)
    }

    /// What a reader of the sums should know.
    pub(crate) fn findings(&self) -> &[String] {
        &self.findings
    }
}

/// True for the first bytes of a core, of a minidump, and of what may unpack to one.
fn may_be_image(path: &Path) -> bool {
    let mut start = [0; 4];
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    let is_read = is_file && File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok();
    let packed = [[0x28, 0xb5, 0x2f, 0xfd], [0x04, 0x22, 0x4d, 0x18]];
    let is_packed = start.starts_with(&[0x1f, 0x8b, 8]) || packed.contains(&start);
    // Profiles of other tools are compressed too, and need not be unpacked to be told from images.
    let is_profile = || File::open(path).ok().and_then(|file| Kind::of(file).ok().flatten()).is_some();
    is_read && (start == *b"\x7fELF" || start == *b"MDMP" || is_packed && !is_profile())
}
