//! What Metal's compiler says about a kernel's arguments, against the manifest: structures are laid out by our front end,
//! and a Mac is where it shows whether Apple's compiler lays them out alike.

use lily_msl::manifest::{Access, KernelManifest};

/// A buffer argument as the compiler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reflected {
    /// The parameter's name.
    pub name: String,
    /// `[[buffer(index)]]`.
    pub index: u32,
    /// Bytes of the element or structure.
    pub bytes: u32,
    /// Its alignment.
    pub align: u32,
}

/// The first difference between a kernel's buffers as compiled and as the host binds them. Arguments that the compiler
/// found unused need not be there.
pub fn difference(kernel: &KernelManifest, reflected: &[Reflected]) -> Option<String> {
    for r in reflected {
        let Some(arg) = kernel.args.iter().find(|a| a.index == r.index) else {
            return Some(format!(
                "the compiler has an argument {} at index {}, the host none",
                r.name, r.index
            ));
        };
        let Some(layout) = arg.layout.as_ref() else { continue };
        // Of a pointer the compiler may name the element or nothing; a structure by reference is known exactly.
        if arg.access == Access::Bytes && r.bytes != layout.size {
            return Some(format!(
                "{} {} has {} bytes for the compiler, {} for the host",
                arg.element, arg.name, r.bytes, layout.size
            ));
        }
        if r.align > 0 && r.align > layout.align.max(16) {
            return Some(format!(
                "{} {} is aligned to {} bytes by the compiler, to {} by the host",
                arg.element, arg.name, r.align, layout.align
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels;

    fn reflected(kernel: &KernelManifest) -> Vec<Reflected> {
        let of = |a: &lily_msl::manifest::ArgManifest| Reflected {
            name: a.name.clone(),
            index: a.index,
            bytes: a.layout.as_ref().map_or(0, |l| l.size),
            align: a.layout.as_ref().map_or(0, |l| l.align),
        };
        kernel.args.iter().map(of).collect()
    }

    #[test]
    fn every_kernel_agrees_with_itself() {
        for kernel in &kernels::manifest().unwrap().kernels {
            assert_eq!(difference(kernel, &reflected(kernel)), None, "{}", kernel.name);
            assert_eq!(difference(kernel, &[]), None);
        }
    }

    #[test]
    fn differences_are_named() {
        let kernel = kernels::manifest().unwrap().kernel("argmax_blocks").unwrap();
        let change = |f: fn(&mut Reflected)| {
            let mut list = reflected(kernel);
            let last = list.last_mut().unwrap();
            f(last);
            difference(kernel, &list).unwrap()
        };
        let grown = change(|r| r.bytes += 4);
        assert!(grown.contains("ArgmaxShape") && grown.contains("20 bytes"), "{grown}");
        let moved = change(|r| r.index = 9);
        assert!(moved.contains("index 9"), "{moved}");
        let aligned = change(|r| r.align = 32);
        assert!(aligned.contains("32"), "{aligned}");
    }
}
