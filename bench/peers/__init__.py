"""Helpers that put other engines beside Lily: model converters, model generators and drivers."""
