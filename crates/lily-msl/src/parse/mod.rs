//! Tokens to the structure the rest of the crate needs: functions with their parameters and attributes, kernels,
//! instantiations, structures, constants. Function bodies stay token ranges; statements are split on demand
//! (module `stmt`). This is no C++ parser: Metal's own compiler, the strict check and the soft device's compiler each
//! judge the language; here only what binds host and kernel is understood, and what is not is an error.

mod constants;
mod items;
mod kernel;
pub(crate) mod scan;
pub(crate) mod stmt;
pub(crate) mod types;

use std::ops::Range;

use crate::diag::{Diagnostics, Finding, Loc};
use crate::lexer::Token;
use crate::preprocess::preprocess;
use crate::source::Sources;

pub(crate) use constants::ConstEnv;
pub use kernel::{ArgKind, Builtin};
pub(crate) use scan::Brackets;
pub use types::{Field, Layout, TypeRef};

/// What the source is read for.
#[derive(Debug, Clone)]
pub struct ParseOptions {
    /// `__METAL_VERSION__`: 320 for Metal 3.2, 400 for Metal 4.
    pub metal_version: u32,
    /// Further macros, as (name, replacement text).
    pub defines: Vec<(String, String)>,
}

impl Default for ParseOptions {
    fn default() -> Self {
        ParseOptions { metal_version: 320, defines: Vec::new() }
    }
}

/// A preprocessed and parsed kernel source.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Name of the root file.
    pub name: String,
    /// File names; [`Loc::file`] indexes them.
    pub files: Vec<String>,
    /// The version of Metal it was read for ([`ParseOptions::metal_version`]).
    pub metal_version: u32,
    pub(crate) tokens: Vec<Token>,
    pub(crate) brackets: Brackets,
    /// Functions, kernels and member functions, in order.
    pub functions: Vec<Function>,
    /// Structures, in order.
    pub structs: Vec<Struct>,
    /// Variables at namespace scope that are no function constants.
    pub constants: Vec<Constant>,
    /// `constant T name [[function_constant(n)]];`
    pub function_constants: Vec<FunctionConstant>,
    /// `template [[host_name("...")]] ...;`
    pub instantiations: Vec<Instantiation>,
    pub(crate) aliases: Vec<Alias>,
    /// Every kernel the host can ask for, by its host name, in order.
    pub kernels: Vec<Kernel>,
}

/// A parameter of a template.
#[derive(Debug, Clone)]
pub struct TemplateParam {
    /// Its name; empty when unnamed.
    pub name: String,
    /// Whether it is a type (`typename T`), not a value.
    pub is_type: bool,
    pub(crate) default: Option<Range<usize>>,
}

/// A function: kernel, helper or member.
#[derive(Debug, Clone)]
pub struct Function {
    /// Its name; `operator+` and the like for operators.
    pub name: String,
    /// Where its name stands.
    pub loc: Loc,
    /// Enclosing namespaces and structures, outermost first.
    pub scope: Vec<String>,
    /// Whether the innermost scope is a structure.
    pub is_member: bool,
    /// Template parameters; empty for no template.
    pub template: Vec<TemplateParam>,
    /// Whether it is an entry point.
    pub is_kernel: bool,
    /// Parameters, in order.
    pub params: Vec<Param>,
    /// Value of `[[max_total_threads_per_threadgroup(...)]]`, unevaluated.
    pub(crate) max_threads: Option<Range<usize>>,
    /// The name given by `[[host_name("...")]]` on the kernel itself.
    pub(crate) host_name: Option<String>,
    /// From `template`, or the first specifier, to the end of the body or `;`.
    pub(crate) item: Range<usize>,
    /// From the first specifier to the body or `;`.
    pub(crate) signature: Range<usize>,
    /// Inside the body's braces; `None` for a declaration.
    pub(crate) body: Option<Range<usize>>,
    /// Variables in threadgroup memory.
    pub tg_vars: Vec<TgVar>,
}

/// A parameter of a function.
#[derive(Debug, Clone)]
pub struct Param {
    /// Its name; empty when unnamed.
    pub name: String,
    /// Where it stands.
    pub loc: Loc,
    /// Its type: what is pointed or referred to, with address space and constness.
    pub ty: TypeRef,
    /// For a kernel's parameters, how the argument comes.
    pub kind: Option<ArgKind>,
    /// All its tokens, attributes included.
    pub(crate) range: Range<usize>,
    /// Whether it has a default argument.
    pub(crate) has_default: bool,
}

/// A structure.
#[derive(Debug, Clone)]
pub struct Struct {
    /// Its name; empty when unnamed.
    pub name: String,
    /// Where it stands.
    pub loc: Loc,
    /// Whether it is a template (its size is then not computed).
    pub is_template: bool,
    pub(crate) members: Vec<Member>,
}

/// A data member of a structure, before layout.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub name: String,
    pub ty: TypeRef,
    /// Tokens inside each `[...]`.
    pub dims: Vec<Range<usize>>,
}

/// A constant at namespace scope, or an enumerator.
#[derive(Debug, Clone)]
pub struct Constant {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub loc: Loc,
    /// Tokens of the initialiser, where it is one expression.
    pub(crate) init: Option<Range<usize>>,
    /// Value of an enumerator without an initialiser: the previous one's index and the distance.
    pub(crate) enum_offset: Option<(Option<usize>, i64)>,
}

/// A constant that the host sets when it makes the pipeline.
#[derive(Debug, Clone)]
pub struct FunctionConstant {
    /// Its name.
    pub name: String,
    /// Its type, as written.
    pub ty: String,
    /// The number the host sets it by.
    pub index: u32,
    /// Where it stands.
    pub loc: Loc,
    /// Enclosing namespaces, outermost first.
    pub(crate) scope: Vec<String>,
    pub(crate) item: Range<usize>,
}

/// `using A = B;` or `typedef B A;`
#[derive(Debug, Clone)]
pub(crate) struct Alias {
    pub name: String,
    /// Tokens of the type it stands for; `None` for an alias template.
    pub target: Option<Range<usize>>,
}

/// An explicit instantiation with a host name.
#[derive(Debug, Clone)]
pub struct Instantiation {
    /// The name the host uses.
    pub host_name: String,
    /// The kernel template's name.
    pub kernel: String,
    /// Where it stands.
    pub loc: Loc,
    /// Tokens of each template argument.
    pub(crate) args: Vec<Range<usize>>,
    pub(crate) item: Range<usize>,
}

/// A variable in threadgroup memory inside a function.
#[derive(Debug, Clone)]
pub struct TgVar {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub loc: Loc,
    /// Its element type.
    pub ty: TypeRef,
    pub(crate) dims: Vec<Range<usize>>,
    /// From `threadgroup` to the `;` (exclusive), shared by the variables of one declaration.
    pub(crate) decl: Range<usize>,
}

/// An entry point as the host sees it.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Host name.
    pub name: String,
    /// Index into [`Unit::functions`].
    pub function: usize,
    /// Template arguments as text, one for each template parameter; empty for no template.
    pub template_args: Vec<String>,
    /// Tokens of each argument.
    pub(crate) arg_ranges: Vec<Range<usize>>,
    /// Where the instantiation (or the kernel) stands.
    pub loc: Loc,
}

impl Unit {
    /// Preprocesses and parses `root`. Everything structural that is wrong is reported at once.
    pub fn parse(sources: &Sources, root: &str, options: &ParseOptions) -> Result<Unit, Diagnostics> {
        let mut defines = vec![
            ("__METAL_VERSION__".to_string(), options.metal_version.to_string()),
            ("__METAL__".to_string(), "1".to_string()),
            ("__METAL_MACOS__".to_string(), "1".to_string()),
            ("__HAVE_BFLOAT__".to_string(), "1".to_string()),
            ("METAL_FUNC".to_string(), "inline".to_string()),
        ];
        defines.extend(options.defines.iter().cloned());
        let pre = preprocess(sources, root, &defines)?;
        let brackets = match Brackets::new(&pre.tokens) {
            Ok(b) => b,
            Err(f) => return Err(Diagnostics(vec![f.named(&pre.files)])),
        };
        let mut unit = Unit {
            name: root.to_string(),
            files: pre.files,
            metal_version: options.metal_version,
            tokens: pre.tokens,
            brackets,
            functions: Vec::new(),
            structs: Vec::new(),
            constants: Vec::new(),
            function_constants: Vec::new(),
            instantiations: Vec::new(),
            aliases: Vec::new(),
            kernels: Vec::new(),
        };
        let mut findings = Vec::new();
        items::parse_items(&mut unit, &mut findings);
        kernel::resolve(&mut unit, &mut findings);
        if findings.is_empty() { Ok(unit) } else { Err(unit.diagnostics(findings)) }
    }

    /// Whether the unit may use tensors and their operations: Metal 4.
    pub(crate) fn has_tensors(&self) -> bool {
        self.metal_version >= 400
    }

    /// A kernel by host name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|k| k.name == name)
    }

    pub(crate) fn diagnostics(&self, mut findings: Vec<Finding>) -> Diagnostics {
        findings.sort();
        findings.dedup();
        Diagnostics(findings.into_iter().map(|f| f.named(&self.files)).collect())
    }

    /// The tokens of a range, as text with single spaces where the source had any.
    pub(crate) fn text(&self, range: Range<usize>) -> String {
        scan::text(&self.tokens[range])
    }
}

#[cfg(test)]
mod tests;
