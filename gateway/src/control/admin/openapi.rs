//! The OpenAPI document, made from the table of routes and the documents' types.

use serde_json::{Map, Value, json};
use utoipa::openapi::ComponentsBuilder;

use super::call::{PREFIX, ROUTES, Verb};
use super::document::{
    Block, ErrorDocument, ErrorWords, GroupDocument, GroupSettings, Groups, HolderKind,
    KeyDocument, KeySettings, KeyStanding, Keys, Limits, Policies, PolicyDocument, PolicySettings,
    ProviderDocument, ProviderSettings, Providers, Quota, RoleDocument, RoleSettings, Roles, State,
    TenantDocument, TenantSettings, Tenants, Usage, UserDocument, UserSettings, Users, Verify,
};

/// What each route is about: its plural's and its documents' schemas.
const SCHEMAS: [(&str, &str, &str, &str); 7] = [
    ("tenants", "Tenants", "TenantDocument", "TenantSettings"),
    ("users", "Users", "UserDocument", "UserSettings"),
    ("roles", "Roles", "RoleDocument", "RoleSettings"),
    ("groups", "Groups", "GroupDocument", "GroupSettings"),
    ("policies", "Policies", "PolicyDocument", "PolicySettings"),
    ("providers", "Providers", "ProviderDocument", "ProviderSettings"),
    ("keys", "Keys", "KeyDocument", "KeySettings"),
];

/// The document, as it is committed.
pub fn document() -> String {
    let mut paths = Map::new();
    for (route, verbs) in ROUTES {
        let mut methods = Map::new();
        methods.insert("parameters".to_owned(), parameters(route));
        for verb in verbs {
            let (method, operation) = operation(route, *verb);
            methods.insert(method.to_owned(), operation);
        }
        paths.insert(format!("{PREFIX}{route}"), methods.into());
    }
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Keyway administration",
            "description": "Tenants, users, roles, groups, policies, OpenID Connect providers and access keys. Requests are signed \
                like S3's (AWS4-HMAC-SHA256, service s3), with the SHA-256 of the body in \
                x-amz-content-sha256. PUT and DELETE may be repeated. What fails before the \
                endpoint is reached, such as a signature, is answered with S3's XML.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "sigv4": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "AWS Signature Version 4",
                },
            },
        },
        "security": [{ "sigv4": [] }],
    });
    let text = serde_json::to_string_pretty(&document).expect("it has a JSON form");
    text + "\n"
}

fn schemas() -> Value {
    let components = ComponentsBuilder::new()
        .schema_from::<Block>()
        .schema_from::<ErrorDocument>()
        .schema_from::<ErrorWords>()
        .schema_from::<GroupDocument>()
        .schema_from::<GroupSettings>()
        .schema_from::<Groups>()
        .schema_from::<HolderKind>()
        .schema_from::<KeyDocument>()
        .schema_from::<KeySettings>()
        .schema_from::<KeyStanding>()
        .schema_from::<Keys>()
        .schema_from::<Limits>()
        .schema_from::<Policies>()
        .schema_from::<PolicyDocument>()
        .schema_from::<PolicySettings>()
        .schema_from::<ProviderDocument>()
        .schema_from::<ProviderSettings>()
        .schema_from::<Providers>()
        .schema_from::<Quota>()
        .schema_from::<RoleDocument>()
        .schema_from::<RoleSettings>()
        .schema_from::<Roles>()
        .schema_from::<State>()
        .schema_from::<TenantDocument>()
        .schema_from::<TenantSettings>()
        .schema_from::<Tenants>()
        .schema_from::<Usage>()
        .schema_from::<UserDocument>()
        .schema_from::<UserSettings>()
        .schema_from::<Users>()
        .schema_from::<Verify>()
        .build();
    let mut schemas = serde_json::to_value(components.schemas).expect("schemas have a JSON form");
    flatten(&mut schemas);
    schemas
}

/// Documents that have settings among their fields are told as one object. As a combination of
/// two they would be none: settings take no other fields.
fn flatten(schemas: &mut Value) {
    let all = schemas.clone();
    for schema in schemas.as_object_mut().into_iter().flat_map(Map::values_mut) {
        let Some(parts) = schema.get_mut("allOf").map(Value::take) else { continue };
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for part in parts.as_array().into_iter().flatten() {
            let name = part["$ref"].as_str().and_then(|path| path.rsplit('/').next());
            let part = name.map_or(part, |name| &all[name]);
            properties.extend(part["properties"].as_object().cloned().unwrap_or_default());
            required.extend(part["required"].as_array().cloned().unwrap_or_default());
        }
        let whole = schema.as_object_mut().expect("a schema is an object");
        whole.remove("allOf");
        whole.insert("type".to_owned(), "object".into());
        whole.insert("properties".to_owned(), properties.into());
        whole.insert("required".to_owned(), required.into());
    }
}

fn parameters(route: &str) -> Value {
    let names = route.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let one = |name: &str| {
        let description = match name {
            "tenant" => "The tenant's name or its twelve digits; self for the caller's own.",
            "key" => "The access key's id: 3 to 128 letters, digits and -_.",
            _ => "1 to 64 letters, digits and _+=,.@-, not dots alone, neither root nor self",
        };
        // What `Name` and `check_access_key` take.
        let pattern = match name {
            "tenant" => r"^(?!\.+$)[A-Za-z0-9_+=,.@-]{1,64}$",
            "key" => r"^[A-Za-z0-9_.-]{3,128}$",
            _ => r"^(?!\.+$|root$|self$)[A-Za-z0-9_+=,.@-]{1,64}$",
        };
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": description,
            "schema": { "type": "string", "pattern": pattern },
        })
    };
    names.map(one).collect()
}

fn operation(route: &str, verb: Verb) -> (&'static str, Value) {
    let kind = route.rsplit('/').find(|part| !part.starts_with('{')).unwrap_or_default();
    let schema = SCHEMAS.iter().find(|(name, ..)| *name == kind);
    let (_, many, one, settings) = schema.expect("every route is about one of them");
    let is_one = route.ends_with('}');
    let content = |schema: &str| {
        let reference = format!("#/components/schemas/{schema}");
        json!({ "application/json": { "schema": { "$ref": reference } } })
    };
    let told =
        |text: &str, schema: &str| json!({ "description": text, "content": content(schema) });
    let mut refused = told("Not done; nothing was changed.", "ErrorDocument");
    // What fails before the endpoint is reached.
    refused["content"]["application/xml"] = json!({});
    let (method, action, mut operation) = match verb {
        Verb::Get => {
            let answer = told("It is so.", if is_one { one } else { many });
            ("get", "AdminRead", json!({ "responses": { "200": answer } }))
        }
        Verb::Put => (
            "put",
            "AdminWrite",
            json!({
                "requestBody": { "required": false, "content": content(settings) },
                "responses": {
                    "200": told("It is so now.", one),
                    "201": told("It was made.", one),
                },
            }),
        ),
        Verb::Delete => (
            "delete",
            "AdminWrite",
            json!({ "responses": { "204": { "description": "It is not there any more." } } }),
        ),
    };
    let noun = if is_one { one.trim_end_matches("Document") } else { many };
    operation["operationId"] = format!("{method}{noun}").into();
    operation["description"] = format!("Needs `keyway:{action}`.").into();
    operation["responses"]["4XX"] = refused.clone();
    operation["responses"]["5XX"] = refused;
    (method, operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no reference leads nowhere, and every type is reached.
    #[test]
    fn references_resolve() {
        let text = document();
        let value: Value = serde_json::from_str(&text).expect("JSON");
        let schemas = value["components"]["schemas"].as_object().expect("an object");
        for name in schemas.keys() {
            let reference = format!("#/components/schemas/{name}\"");
            assert!(text.contains(&reference), "nothing refers to {name}");
        }
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap_or_default();
            assert!(schemas.contains_key(name), "{name} is not there");
        }
    }
}
