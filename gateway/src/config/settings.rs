//! How a section of the configuration is declared: once, with its defaults and its
//! documentation, so that docs/config.md cannot tell anything else than the code does.

/// A documented setting of docs/config.md.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Full name, for example `listen.address`.
    pub(crate) name: String,
    /// Kind of value, for example `integer`.
    pub(crate) kind: &'static str,
    /// What it does.
    pub(crate) doc: String,
}

/// A section heading of docs/config.md with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    /// Full name, for example `node.store`; empty at the top.
    pub(crate) name: String,
    /// What it is about.
    pub(crate) doc: String,
    /// Settings directly in it.
    pub(crate) settings: Vec<Setting>,
}

/// A type that stands in the configuration: a value, or a section of more.
pub(crate) trait Describe {
    /// Adds itself, named `name` and documented with `doc`, to the sections; the one that it
    /// stands in is `parent`.
    fn describe(name: String, doc: String, parent: usize, sections: &mut Vec<Section>);
}

/// Implements [`Describe`] for kinds of values.
macro_rules! values {
    ($($kind:literal: $($type:ty),+;)+) => {
        $($(
            impl $crate::config::settings::Describe for $type {
                fn describe(
                    name: String,
                    doc: String,
                    parent: usize,
                    sections: &mut Vec<$crate::config::settings::Section>,
                ) {
                    sections[parent].settings.push($crate::config::settings::Setting {
                        name,
                        kind: $kind,
                        doc,
                    });
                }
            }
        )+)+
    };
}
pub(crate) use values;

/// Declares sections: structs whose fields carry their documentation and default.
macro_rules! section {
    ($(
        $(#[doc = $doc:literal])+
        pub struct $name:ident {
            $(
                $(#[doc = $field_doc:literal])+
                pub $field:ident: $type:ty = $default:expr,
            )+
        }
    )+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(deny_unknown_fields, default)]
            pub struct $name {
                $(
                    $(#[doc = $field_doc])+
                    pub $field: $type,
                )+
            }

            impl Default for $name {
                fn default() -> Self {
                    Self { $($field: $default,)+ }
                }
            }

            impl $crate::config::settings::Describe for $name {
                fn describe(
                    name: String,
                    _doc: String,
                    _parent: usize,
                    sections: &mut Vec<$crate::config::settings::Section>,
                ) {
                    let here = sections.len();
                    sections.push($crate::config::settings::Section {
                        name: name.clone(),
                        doc: [$($doc.trim()),+].join(" "),
                        settings: Vec::new(),
                    });
                    $(
                        let field = stringify!($field);
                        let full = if name.is_empty() {
                            field.to_owned()
                        } else {
                            format!("{name}.{field}")
                        };
                        let doc = [$($field_doc.trim()),+].join(" ");
                        <$type as $crate::config::settings::Describe>::describe(
                            full, doc, here, sections,
                        );
                    )+
                }
            }
        )+
    };
}
pub(crate) use section;

values! {
    "integer": u16, u32, u64, usize, Option<u8>, Option<u64>, Option<usize>,
        std::num::NonZeroU32, std::num::NonZeroUsize;
    "fraction from 0 to 1": f64;
    "boolean": bool;
    "text": String, Option<String>;
    "list of texts": Vec<String>;
    "list of integers": Vec<u32>;
    "path": std::path::PathBuf, Option<std::path::PathBuf>;
    "address and port": std::net::SocketAddr, Option<std::net::SocketAddr>;
}
