"""Decodes an OTLP profile with the messages that OpenTelemetry publishes, and prints a total a line: type and sum."""

import sys

from opentelemetry.proto.profiles.v1development import profiles_pb2

data = profiles_pb2.ProfilesData()
with open(sys.argv[1], "rb") as file:
    data.ParseFromString(file.read())
texts = data.dictionary.string_table
for resource in data.resource_profiles:
    for scope in resource.scope_profiles:
        for profile in scope.profiles:
            for sample in profile.samples:
                # Every index that a reader follows must lead somewhere.
                for location in data.dictionary.stack_table[sample.stack_index].location_indices:
                    for line in data.dictionary.location_table[location].lines:
                        texts[data.dictionary.function_table[line.function_index].name_strindex]
            total = sum(value for sample in profile.samples for value in sample.values)
            print(texts[profile.sample_type.type_strindex], total)
