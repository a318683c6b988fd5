//! Result files against the schema that the repository keeps, and against their own counts.

use plimsoll::report::{check, result::ResultFile};
use serde_json::Value;

/// The schema as kept, with every object closed: a field that the schema does not name is an error here, though not for users.
pub fn closed() -> Value {
    fn close(value: &mut Value) {
        match value {
            Value::Object(map) => {
                if map.contains_key("properties") {
                    map.insert("additionalProperties".to_owned(), Value::Bool(false));
                }
                map.values_mut().for_each(close);
            }
            Value::Array(items) => items.iter_mut().for_each(close),
            _ => {}
        }
    }
    let mut schema = serde_json::from_str(include_str!("../schema/plimsoll-1.json")).expect("the schema is JSON");
    close(&mut schema);
    schema
}

/// What is wrong with a result file: against the schema, and numbers that its own counts contradict.
pub fn errors(result: &Value) -> Vec<String> {
    let validator = jsonschema::validator_for(&closed()).expect("the schema is a schema");
    let mut errors: Vec<String> =
        validator.iter_errors(result).map(|error| format!("{}: {error}", error.instance_path)).collect();
    match serde_json::from_value::<ResultFile>(result.clone()) {
        Ok(file) => errors.extend(check::contradictions(&file)),
        Err(error) => errors.push(error.to_string()),
    }
    errors
}
