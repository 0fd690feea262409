//! The modules of a crate and the imports between their files: resolved through re-exports, without test code.

use std::collections::{BTreeMap, BTreeSet};

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ImplItem, Item, Meta, Token, Type, UseTree};

use super::tree::{File, Tree};

/// The limit of re-exports that a lookup follows: some resolve to themselves, such as `use log::log` of another crate.
const DEPTH_MAX: usize = 16;

/// The modules of one library or program, the root first.
#[derive(Debug)]
pub(super) struct Modules<'a> {
    modules: Vec<Module<'a>>,
}

#[derive(Debug)]
struct Module<'a> {
    /// The names from the root to this module; empty for the root.
    path: Vec<String>,
    file: &'a File,
    children: BTreeMap<String, usize>,
    /// The names of its items.
    items: BTreeSet<String>,
    uses: Uses,
    is_test: bool,
}

#[derive(Debug)]
struct Path {
    segments: Vec<String>,
    line: usize,
}

/// An import of one file by another of the same crate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Import<'m> {
    pub(super) from: &'m File,
    pub(super) line: usize,
    pub(super) to: &'m File,
    /// The paths of both modules.
    pub(super) modules: [&'m [String]; 2],
}

impl<'a> Modules<'a> {
    /// The modules of every library and program in `tree`.
    pub(super) fn of_all(tree: &'a Tree) -> Vec<Self> {
        tree.with_extension("rs")
            .filter(|file| is_root(file.path()))
            .map(|root| Self::of(tree, root))
            .collect()
    }

    /// The modules that `root` declares, directly or not.
    pub(super) fn of(tree: &'a Tree, root: &'a File) -> Self {
        let mut crate_ = Self { modules: Vec::new() };
        let directory = root.path().rsplit_once('/').map_or("", |(directory, _)| directory);
        crate_.add(tree, directory, Module::new(root, Vec::new(), false), &items_of(root));
        crate_
    }

    /// The files of these modules.
    pub(super) fn files(&self) -> impl Iterator<Item = &'a File> {
        self.modules.iter().map(|module| module.file)
    }

    /// Every import between two files, except in tests. Where the `impl` blocks of a type are in several
    /// files, the call of a method of `self` is an import of the file that defines it. A call by
    /// another name of `self` is not found.
    pub(super) fn imports(&self) -> Vec<Import<'_>> {
        let mut imports = self.calls();
        for (index, module) in self.modules.iter().enumerate().filter(|(_, module)| !module.is_test) {
            for Path { segments, line } in &module.uses.paths {
                let Some(to) = self.resolve(index, segments, 0).map(|to| &self.modules[to]) else { continue };
                if to.file.path() != module.file.path() && !to.is_test {
                    let modules = [&module.path[..], &to.path[..]];
                    imports.push(Import { from: module.file, line: *line, to: to.file, modules });
                }
            }
        }
        imports
    }

    /// The calls of methods of `self` that other files define.
    fn calls(&self) -> Vec<Import<'_>> {
        let modules = || self.modules.iter().enumerate().filter(|(_, module)| !module.is_test);
        // Types of one name in different modules are different types.
        let resolved = |at: usize, (type_, method): &Method| {
            let home = self.resolve_in(at, std::slice::from_ref(type_), 0)?;
            Some((home, type_.clone(), method.clone()))
        };
        let mut homes = BTreeMap::new();
        for (at, module) in modules() {
            homes.extend(
                module.uses.methods.iter().filter_map(|method| Some((resolved(at, method)?, module))),
            );
        }
        let mut imports = Vec::new();
        for (at, module) in modules() {
            for (method, line) in &module.uses.calls {
                let home = resolved(at, method).and_then(|method| homes.get(&method));
                let home = home.filter(|home| home.file.path() != module.file.path());
                imports.extend(home.map(|home| {
                    let modules = [&module.path[..], &home.path[..]];
                    Import { from: module.file, line: *line, to: home.file, modules }
                }));
            }
        }
        imports
    }

    /// Adds a module that has these items, and the modules that it declares. Their files are below `directory`. Returns its index.
    fn add(&mut self, tree: &'a Tree, directory: &str, mut module: Module<'a>, items: &[Item]) -> usize {
        module.items = items.iter().filter_map(name_of).collect();
        items.iter().for_each(|item| module.uses.visit_item(item));
        let (file, path, is_test) = (module.file, module.path.clone(), module.is_test);
        let index = self.modules.len();
        self.modules.push(module);
        for item in items {
            let Item::Mod(inner) = item else { continue };
            let name = inner.ident.to_string();
            let below = format!("{directory}/{name}");
            let places = [format!("{below}.rs"), format!("{below}/mod.rs")];
            let (file, items) = match &inner.content {
                Some((_, items)) => (file, items.clone()),
                None => match places.iter().find_map(|place| tree.get(place)) {
                    Some(file) => (file, items_of(file)),
                    None => continue,
                },
            };
            let path = [&path[..], std::slice::from_ref(&name)].concat();
            let inner = Module::new(file, path, is_test || is_for_tests(&inner.attrs));
            let child = self.add(tree, &below, inner, &items);
            self.modules[index].children.insert(name, child);
        }
        index
    }

    /// The module that defines the item of this path in module `at`; `None` for other crates and local names.
    fn resolve(&self, at: usize, segments: &[String], depth: usize) -> Option<usize> {
        let (first, rest) = segments.split_first().filter(|_| depth < DEPTH_MAX)?;
        let module = &self.modules[at];
        match first.as_str() {
            "crate" => self.resolve_in(0, rest, depth),
            "self" => self.resolve_in(at, rest, depth),
            "super" => {
                let parent = &module.path[..module.path.len().checked_sub(1)?];
                let parent = self.modules.iter().position(|module| module.path == parent)?;
                if rest.first().is_some_and(|next| next == "super") {
                    self.resolve(parent, rest, depth + 1)
                } else {
                    self.resolve_in(parent, rest, depth)
                }
            }
            name if module.children.contains_key(name) => self.resolve_in(at, segments, depth),
            name => {
                let path = module.uses.names.get(name)?;
                let is_itself = path.len() == 1 && path[0] == *name;
                if is_itself { None } else { self.resolve(at, &[path, rest].concat(), depth + 1) }
            }
        }
    }

    /// The same for a path relative to module `at`.
    fn resolve_in(&self, at: usize, segments: &[String], depth: usize) -> Option<usize> {
        let Some((first, rest)) = segments.split_first() else { return Some(at) };
        let module = &self.modules[at];
        if let Some(&child) = module.children.get(first) {
            return self.resolve_in(child, rest, depth);
        }
        if let Some(path) = module.uses.names.get(first) {
            return self.resolve(at, &[path, rest].concat(), depth + 1);
        }
        if module.items.contains(first) {
            return Some(at);
        }
        let through_glob = |path: &Vec<String>| {
            let within = self.resolve(at, path, depth + 1)?;
            if depth < DEPTH_MAX { self.resolve_in(within, segments, depth + 1) } else { None }
        };
        module.uses.globs.iter().find_map(through_glob)
    }
}

impl<'a> Module<'a> {
    /// A module without contents yet.
    fn new(file: &'a File, path: Vec<String>, is_test: bool) -> Self {
        Self { path, file, children: BTreeMap::new(), items: BTreeSet::new(), uses: Uses::default(), is_test }
    }
}

/// The items of a file. The compiler rejects files that do not parse.
pub(super) fn items_of(file: &File) -> Vec<Item> {
    syn::parse_file(file.text()).map(|parsed| parsed.items).unwrap_or_default()
}

/// The name of an importable item.
fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Whether this is `self`, also dereferenced or in parentheses.
fn is_self(expression: &Expr) -> bool {
    match expression {
        Expr::Path(path) => path.path.is_ident("self"),
        Expr::Paren(inner) => is_self(&inner.expr),
        Expr::Unary(inner) => is_self(&inner.expr),
        Expr::Reference(inner) => is_self(&inner.expr),
        _ => false,
    }
}

/// The name of a type without its path and parameters.
fn name_of_type(type_: &Type) -> Option<String> {
    let Type::Path(path) = type_ else { return None };
    path.path.segments.last().map(|segment| segment.ident.to_string())
}

/// Whether this file is the root of a library or a program.
pub(super) fn is_root(path: &str) -> bool {
    let Some((_, inside)) = path.split_once("/src/") else { return false };
    let program = inside.strip_prefix("bin/").is_some_and(|name| {
        let directory = name.strip_suffix("/main.rs").unwrap_or(name);
        !directory.contains('/')
    });
    inside == "lib.rs" || inside == "main.rs" || program
}

/// Whether an item is compiled for tests only.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let metas = attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
        metas.is_ok_and(|metas| {
            metas.iter().any(|meta| match meta {
                Meta::List(list) if list.path.is_ident("all") => {
                    list.tokens.clone().into_iter().any(|token| token.to_string() == "test")
                }
                meta => meta.path().is_ident("test"),
            })
        })
    })
}

/// A method, by the names of its type and its own.
type Method = (String, String);

/// The names and paths that one module uses, without its inner modules.
#[derive(Debug, Default)]
struct Uses {
    /// The paths of imported names.
    names: BTreeMap<String, Vec<String>>,
    /// The paths of `use path::*`.
    globs: Vec<Vec<String>>,
    /// All paths in its code.
    paths: Vec<Path>,
    /// The methods in its `impl` blocks.
    methods: BTreeSet<Method>,
    /// The methods of `self` that it calls, and the lines.
    calls: Vec<(Method, usize)>,
    /// The type of the `impl` block that is being visited.
    type_: Option<String>,
}

impl Uses {
    fn add_use(&mut self, tree: &UseTree, above: &[String]) {
        let with = |name: &syn::Ident| [above, &[name.to_string()]].concat();
        let (segments, name) = match tree {
            UseTree::Path(path) => return self.add_use(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.add_use(tree, above)),
            UseTree::Glob(_) => {
                self.globs.push(above.to_vec());
                (above.to_vec(), None)
            }
            UseTree::Name(name) if name.ident == "self" => (above.to_vec(), above.last().cloned()),
            UseTree::Name(name) => (with(&name.ident), Some(name.ident.to_string())),
            UseTree::Rename(rename) => (with(&rename.ident), Some(rename.rename.to_string())),
        };
        let line = syn::spanned::Spanned::span(tree).start().line;
        self.names.extend(name.map(|name| (name, segments.clone())));
        self.paths.push(Path { segments, line });
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(_) => return,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !matches!(item, ImplItem::Fn(function) if is_for_tests(&function.attrs)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_impl(&mut self, block: &'ast syn::ItemImpl) {
        let Some(name) = name_of_type(&block.self_ty) else { return visit::visit_item_impl(self, block) };
        let methods = block.items.iter().filter_map(|item| match item {
            ImplItem::Fn(function) if !is_for_tests(&function.attrs) => Some(&function.sig.ident),
            _ => None,
        });
        if block.trait_.is_none() {
            self.methods.extend(methods.map(|method| (name.clone(), method.to_string())));
        }
        let outer = self.type_.replace(name);
        visit::visit_item_impl(self, block);
        self.type_ = outer;
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if let Some(type_) = self.type_.as_ref().filter(|_| is_self(&call.receiver)) {
            self.calls.push(((type_.clone(), call.method.to_string()), call.method.span().start().line));
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.add_use(&item.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let segments: Vec<String> =
                path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            if let ([self_, method], Some(type_)) = (&segments[..], &self.type_)
                && (self_ == "Self" || self_ == type_)
            {
                let line = syn::spanned::Spanned::span(path).start().line;
                self.calls.push(((type_.clone(), method.clone()), line));
            }
            self.paths.push(Path { segments, line: syn::spanned::Spanned::span(path).start().line });
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// The imports between the parts of each module, which are its child modules and its own code.
///
/// An import belongs to the innermost module that contains both files: `a/x.rs` -> `b/y.rs` is an import of `b` by `a` in the root.
#[derive(Debug, Default)]
pub(super) struct Parts<'m> {
    /// For each module and each of its parts (the empty name is its own code): the imported parts, each with one import.
    pub(super) levels: BTreeMap<&'m [String], BTreeMap<&'m str, BTreeMap<&'m str, Import<'m>>>>,
}

impl<'m> Parts<'m> {
    pub(super) fn of(imports: &[Import<'m>]) -> Self {
        let mut parts = Self::default();
        for import in imports {
            let [from, to] = import.modules;
            let common = from.iter().zip(to).take_while(|(from, to)| from == to).count();
            let part = |path: &'m [String]| path.get(common).map_or("", String::as_str);
            let level = parts.levels.entry(&from[..common]).or_default();
            level.entry(part(from)).or_default().entry(part(to)).or_insert(*import);
        }
        parts
    }

    /// The imports of cycles between the parts of a module: a shortest cycle through each part that is in no other reported cycle.
    pub(super) fn cycles(&self) -> Vec<Vec<Import<'m>>> {
        let mut cycles = Vec::new();
        for edges in self.levels.values() {
            let mut known = BTreeSet::new();
            for &start in edges.keys() {
                if let Some(cycle) = shortest_cycle(edges, start).filter(|_| !known.contains(start)) {
                    known.extend(cycle.iter().map(|&(part, _)| part));
                    cycles.push(cycle.into_iter().map(|(_, import)| import).collect());
                }
            }
        }
        cycles
    }
}

/// The shortest cycle through `start`: its parts, each with its import of the next.
fn shortest_cycle<'m>(
    edges: &BTreeMap<&'m str, BTreeMap<&'m str, Import<'m>>>,
    start: &'m str,
) -> Option<Vec<(&'m str, Import<'m>)>> {
    let mut paths = vec![(start, Vec::new())];
    let mut seen = BTreeSet::new();
    let mut next = 0;
    while let Some((part, path)) = paths.get(next).cloned() {
        for (&to, &import) in edges.get(part).into_iter().flatten() {
            let path = [&path[..], &[(part, import)]].concat();
            if to == start {
                return Some(path);
            }
            if seen.insert(to) {
                paths.push((to, path));
            }
        }
        next += 1;
    }
    None
}
